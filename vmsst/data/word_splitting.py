"""Splits text into words by language-specific rules, for both training and inference.

As in the EMS paper (section IV-B), jieba splits Chinese, Juman++ splits Japanese, and the Moses
tokenizer splits all other languages. Split text before you lowercase it, because the Moses
tokenizer recognizes "Mr." as an abbreviation, but not "mr.". (The released EMS code splits first in
training, but lowercases first when it embeds sentences.)

jieba splits simplified and traditional Chinese, Wu and Cantonese. The Moses tokenizer from
`sacremoses` has abbreviation lists for some forty languages and uses the English list for all other
languages. Apostrophes stay attached to a word in English, French and Italian. In other languages,
they become separate words. Special characters are not escaped, so "&" stays "&". Juman++ is run as
the program `jumanpp`, once for each list of texts. The program receives each space-separated
stretch of a text as a separate line.

The packages are imported when a language first needs them. To install them, run `pip install
'vmsst[ems]'`.
"""

import functools
import logging
import shutil
import subprocess
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from vmsst import errors

if TYPE_CHECKING:
  from vmsst.languages import Language

Languages: TypeAlias = "str | Language | Sequence[str | Language] | None"
"""One language for all texts, or one for each text, as `Language`s or codes in any standard."""

_CHINESE = ("cmn", "wuu", "yue")
_JAPANESE = "jpn"
# Characters per input line for Juman++, which rejects lines longer than a few thousand bytes.
_JAPANESE_STRETCH = 1000


def split_words(texts: Sequence[str], language: Languages) -> list[str]:
  """Splits each text into words, and returns the words joined by single spaces.

  Args:
    texts: Whole sentences, not lowercased.
    language: One language for all texts, or one language for each text.

  Raises:
    InputError: If the language is missing or unknown, or the package or program that splits the
      language is not installed.
    ValueError: If the number of languages differs from the number of texts.
  """
  from vmsst import languages  # This import reads the language table.

  if language is None:
    raise errors.InputError(
      "this vocabulary splits text into words by language-specific rules; pass language=, for "
      'example language="de", or a list with one language for each text'
    )
  if isinstance(language, (str, languages.Language)):
    language = [language] * len(texts)
  # Group the texts by language, so that each splitter receives all its texts at once.
  indices_by_language: dict[languages.Language, list[int]] = {}
  language_row = functools.cache(languages.language)
  for index, (_, code) in enumerate(zip(texts, language, strict=True)):
    row = code if isinstance(code, languages.Language) else language_row(code)
    indices_by_language.setdefault(row, []).append(index)
  words = [""] * len(texts)
  for row, indices in indices_by_language.items():
    row_texts = [texts[index] for index in indices]
    if row.iso639_3 == _JAPANESE:
      split = _split_japanese(row_texts)
    else:
      cut = _jieba() if row.iso639_3 in _CHINESE else _moses(row)
      split = [" ".join(" ".join(cut(text)).split()) for text in row_texts]
    for index, text in zip(indices, split, strict=True):
      words[index] = text
  return words


def normalize_punctuation(texts: Sequence[str]) -> list[str]:
  """Replaces nonprinting characters with spaces, and normalizes punctuation as Moses does.

  LASER normalizes its input this way. The English rules of Moses 4.0 apply to all languages. For
  example, quotation marks of all kinds become `"`, and dashes become `-`.

  Raises:
    InputError: If sacremoses is not installed.
  """
  with errors.requires("ems", "normalizing punctuation for LASER"):
    import sacremoses
  moses = sacremoses.MosesPunctNormalizer("en", perl_parity=True)
  # Moses 4.0 turns these characters into double quotes, but sacremoses turns them into apostrophes.
  quotes = dict.fromkeys("‘‚", '"')
  moses.substitutions = [(old, quotes.get(old, new)) for old, new in moses.substitutions]
  printing = ("".join(" " if unicodedata.category(x)[0] == "C" else x for x in t) for t in texts)
  return [moses.normalize(text) for text in printing]


@functools.cache
def _moses(language: "Language") -> Callable[[str], list[str]]:
  with errors.requires("ems", f"splitting {language.name} into words"):
    import sacremoses
  tokenizer = sacremoses.MosesTokenizer(language.iso639_1 or language.iso639_3)
  # These replacements are fifty times as fast as sacremoses' own methods, which rebuild a set of
  # all letters for every abbreviation.
  letters, small = _letters(tokenizer.IsAlpha), _letters(tokenizer.IsLower)
  tokenizer.isanyalpha = lambda text: not letters.isdisjoint(text)
  tokenizer.islower = small.issuperset
  return functools.partial(tokenizer.tokenize, escape=False)


@functools.cache
def _letters(letters: str) -> frozenset[str]:
  return frozenset(letters)


@functools.cache
def _jieba() -> Callable[[str], Any]:
  with warnings.catch_warnings():  # jieba, last released in 2020, triggers warnings.
    warnings.simplefilter("ignore")
    with errors.requires("ems", "splitting Chinese into words"):
      import jieba
  jieba.setLogLevel(logging.WARNING)
  tokenizer = jieba.Tokenizer()
  # Make jieba use a private cache folder. By default, jieba loads its cache from the system's
  # temporary folder, where other users can write.
  with tempfile.TemporaryDirectory() as folder:
    tokenizer.tmp_dir = folder
    tokenizer.initialize()
  return tokenizer.cut


def _split_japanese(texts: Sequence[str]) -> list[str]:
  program = shutil.which("jumanpp")
  if program is None:
    raise errors.InputError(
      "splitting Japanese into words needs Juman++, but jumanpp is not on the PATH; build version "
      "2 and its model from https://github.com/ku-nlp/jumanpp/releases (on macOS, run brew install "
      "jumanpp; pip and apt do not provide it), or omit Japanese"
    )
  stretches = [
    [
      stretch[start : start + _JAPANESE_STRETCH]
      for stretch in text.split()
      for start in range(0, len(stretch), _JAPANESE_STRETCH)
    ]
    for text in texts
  ]
  lines = [stretch for of_text in stretches for stretch in of_text]
  if not lines:
    return [""] * len(texts)
  process = subprocess.run(
    [program],
    input="".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace"),
    capture_output=True,
    check=False,
  )
  # Each output line contains a word and its properties: `word reading lemma part-of-speech number
  # ...`. Alternative analyses of the word follow on lines that start with `@`. (On the line of a
  # word that is itself `@`, the fifth field is a number.) `EOS` ends each analysis. If an analysis
  # fails, `# ERROR` takes its place.
  analyses: list[list[str]] = [[]]
  for line in process.stdout.decode("utf-8", errors="replace").split("\n"):
    fields = line.split(" ")
    if line == "EOS":
      analyses.append([])
    elif len(fields) > 4 and (fields[0] != "@" or fields[4].isdigit()):
      analyses[-1].append(fields[0])
  analyses.pop()  # Remove the empty list after the last EOS.
  if process.returncode or len(analyses) < len(lines):
    reason = process.stderr.decode("utf-8", errors="replace").strip() or "no reason given"
    raise errors.InputError(
      f"{program} (Juman++) analyzed {len(analyses)} of {len(lines)} lines and exited with code "
      f"{process.returncode}: {reason}; try it in a shell: echo '日本語' | jumanpp"
    )
  analyzed = iter(analyses)
  words = [[next(analyzed) or [stretch] for stretch in of_text] for of_text in stretches]
  return [" ".join(word for analysis in of_text for word in analysis) for of_text in words]
