"""Splits documents into sentences, in any language.

A sentence ends

* after `. ! ?` or an ellipsis, including closing quotes and brackets, if white space follows and
  then anything except a small letter; but not after the full stop of a single capital letter
  ("J. S. Bach");
* after a sentence mark of a script that writes no space after it: Chinese and Japanese, Arabic and
  Urdu, Devanagari and Bengali, Ethiopic, Armenian, Khmer, Burmese;
* at the end of a line.

Abbreviations ("Dr. Smith") are split too, which adds a piece to the mean. Thai and Lao, which have
no such marks, are split at line ends only.
"""

import re

from vmsst.io import text_fields

_CLOSING = r"[\"'”’»›)\]）」』】》〉]*+"
_SPACED = rf"(?<![.!?…])(?P<stop>[.!?…]++){_CLOSING}(?=\s++(?P<next>\S))"
# Chinese and Japanese, Arabic and Urdu, Devanagari, Ethiopic, Armenian, Khmer, Burmese.
_UNSPACED = rf"[。！？｡؟۔।॥።፧։។៕။]++{_CLOSING}"
_BOUNDARY = re.compile(rf"{_SPACED}|{_UNSPACED}|\n")


def sentences(text: str) -> list[str]:
  """Returns the sentences of a document; a blank document has one empty sentence."""
  pieces, start = [], 0
  for match in _BOUNDARY.finditer(text):
    if _ends(text, match):
      pieces.append(text[start : match.end()])
      start = match.end()
  pieces.append(text[start:])
  kept = [
    piece
    for piece in (" ".join(part.split()) for part in pieces)
    if not text_fields.is_blank(piece)
  ]
  return kept or [""]


def _ends(text: str, boundary: re.Match[str]) -> bool:
  """Returns whether a mark ends a sentence, given its context."""
  if boundary["stop"] is None:
    return True
  if boundary["next"].islower():
    return False
  before = text[max(0, boundary.start() - 2) : boundary.start()]
  initial = before[-1:].isupper() and not before[:-1].isalnum()
  return boundary["stop"] != "." or not initial
