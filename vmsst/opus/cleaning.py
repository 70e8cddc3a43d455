"""Normalizes and filters text pairs, and detects sentences from evaluation sets.

    texts = benchmarks.held_out_texts(BENCHMARKS.values(), "/data")
    sentences = EvaluationSentences.from_texts(texts)
    sentences.sets(sentence_key("Hello, world!"))  # ("tatoeba",), or () if no set contains it

Sentences are compared by `text_key`, which ignores case, punctuation and spaces. Evaluation
sentences without letters or digits are never matched.
"""

import array
import bisect
import functools
import hashlib
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from vmsst.io import text_files
from vmsst.languages import UNDETERMINED, Language

EMPTY = "empty"
ENCODING = "encoding"
TOO_LONG = "too_long"
COPY = "copy"
RATIO = "ratio"
SCRIPT = "script"
REASONS = (EMPTY, ENCODING, TOO_LONG, COPY, RATIO, SCRIPT)
"""Why `Cleaner` drops a pair, in the order of its checks.

The reasons mean, in this order: a text is blank; a text contains U+FFFD, a sign of a decoding
error; a text is too long; the texts have the same `text_key`; one text is too long compared with
the other; a text has too few letters in the scripts of its language.
"""

# How many alphabetic characters one character counts as, by script (default: 1).
_DENSITY = {"Hans": 3.0, "Hant": 3.0, "Jpan": 2.2, "Hang": 2.0, "Yiii": 3.0, "Ethi": 1.5}
# The longer text may exceed the maximum ratio by this many characters. This keeps short pairs, such
# as "No." and "Certainly not.".
_SLACK = 20

# Unicode blocks of letters and combining marks, by script.
_HAN = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN += "\U00020000-\U000323af"
_BLOCKS = {
  "Arab": "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
  "Armn": "\u0530-\u058f\ufb13-\ufb17",
  "Avst": "\U00010b00-\U00010b3f",
  "Beng": "\u0980-\u09ff",
  "Cans": "\u1400-\u167f\u18b0-\u18ff",
  "Cyrl": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
  "Deva": "\u0900-\u097f\ua8e0-\ua8ff",
  "Ethi": "\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f",
  "Geor": "\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f",
  "Grek": "\u0370-\u03ff\u1f00-\u1fff",
  "Gujr": "\u0a80-\u0aff",
  "Guru": "\u0a00-\u0a7f",
  "Hang": "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc",
  "Hans": _HAN + "\u3100-\u312f\u31a0-\u31bf",
  "Hant": _HAN + "\u3100-\u312f\u31a0-\u31bf",
  "Hebr": "\u0590-\u05ff\ufb1d-\ufb4f",
  "Jpan": _HAN + "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
  "Khmr": "\u1780-\u17ff",
  "Knda": "\u0c80-\u0cff",
  "Laoo": "\u0e80-\u0eff",
  "Latn": "A-Za-z\u00aa\u00ba\u00c0-\u024f\u0250-\u02af\u1d00-\u1dbf\u1e00-\u1eff\u2183\u2184"
  "\u2c60-\u2c7f\ua720-\ua7ff\uab30-\uab6f\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a",
  "Mlym": "\u0d00-\u0d7f",
  "Mymr": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
  "Nkoo": "\u07c0-\u07ff",
  "Olck": "\u1c50-\u1c7f",
  "Orya": "\u0b00-\u0b7f",
  "Sinh": "\u0d80-\u0dff",
  "Taml": "\u0b80-\u0bff",
  "Telu": "\u0c00-\u0c7f",
  "Tfng": "\u2d30-\u2d7f",
  "Thaa": "\u0780-\u07bf",
  "Thai": "\u0e00-\u0e7f",
  "Tibt": "\u0f00-\u0fff",
  "Yiii": "\ua000-\ua4cf",
}
# Additional scripts, by language and main script. Corpora use one code for all of these scripts.
_MIXED = {
  ("srp", "Cyrl"): ("Latn",),
  ("hbs", "Latn"): ("Cyrl",),
  ("bos", "Latn"): ("Cyrl",),
  ("uzn", "Latn"): ("Cyrl",),
  ("ber", "Latn"): ("Tfng",),
  ("sat", "Olck"): ("Beng", "Deva"),
}

# Characters after which a zero-width joiner or non-joiner can change the spelling of a word. These
# characters belong to Arabic and related scripts (with presentation forms), to scripts from India
# and its neighbors, and to Mongolian.
_JOINING = (
  "\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\u1900-\u1c4f\ua800-\ua95f\ua980-\uaadf"
  "\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc"
)
# Format characters that are visible, because they enclose Arabic or Syriac numbers.
_VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2")


class Cleaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Rules for normalizing texts and dropping pairs.

  Attributes:
    max_characters: Maximum length of each text, in characters.
    max_ratio: Maximum ratio of the longer text's length to the shorter text's length. The longer
      text may exceed this limit by 20 characters. A character that stands for a syllable or word
      counts as several characters (for example, 3 in Han script). The script is determined by the
      language or, if the language is undetermined, by the text's letters.
    min_script_share: Minimum fraction of a text's letters that must belong to a script of its
      language.
  """

  max_characters: Annotated[int, msgspec.Meta(ge=1)] = 1000
  max_ratio: Annotated[float, msgspec.Meta(ge=1)] = 3.0
  min_script_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5


class Cleaner:
  """Normalizes and filters text pairs in two languages.

  Call a `Cleaner` with the two texts of a pair. It returns the normalized texts, or one of REASONS
  if the pair is dropped.
  """

  def __init__(self, cleaning: Cleaning, source: Language, target: Language):
    """Prepares the rules.

    Args:
      cleaning: The rules.
      source: Language of the first text.
      target: Language of the second text.
    """
    self._rules = cleaning
    self._scripts = [
      ()  # any script
      if language == UNDETERMINED
      else (language.script, *_MIXED.get((language.iso639_3, language.script), ()))
      for language in (source, target)
    ]

  def __call__(self, source: str, target: str) -> tuple[str, str] | str:
    """Returns the two normalized texts, or the reason for dropping the pair."""
    rules, texts = self._rules, (normalize(source), normalize(target))
    if any(map(text_files.is_blank, texts)):
      return EMPTY
    if any("\ufffd" in text for text in texts):
      return ENCODING
    if max(map(len, texts)) > rules.max_characters:
      return TOO_LONG
    if texts[0] == texts[1] or _key(texts[0]) == _key(texts[1]):
      return COPY
    shorter, longer = sorted(map(_width, texts, self._scripts))
    if longer > shorter * rules.max_ratio + _SLACK:
      return RATIO
    share = rules.min_script_share
    if share and not all(map(functools.partial(_has_share, share=share), texts, self._scripts)):
      return SCRIPT
    return texts


def normalize(text: str) -> str:
  """Normalizes a text to Unicode NFC, with single spaces and without invisible characters.

  Removes control and format characters, such as byte order marks, text direction marks, soft
  hyphens and zero-width spaces. Zero-width joiners and non-joiners are kept in emoji and after
  letters that they can change. Each run of whitespace, including line breaks, becomes one space,
  and whitespace at both ends is stripped.
  """
  if not text.isprintable():
    text = _invisible().sub("", text)
  if not text.isascii():
    text = unicodedata.normalize("NFC", text)
  return " ".join(text.split())


def text_key(text: str) -> str:
  """Returns a text in lowercase, without punctuation, symbols and spaces.

  Only letters, combining marks and digits remain, in Unicode NFKC. For example, "It’s ①!" becomes
  "its1". Texts with the same key are treated as the same sentence.
  """
  if text.isascii():
    return text.translate(_ASCII_KEY)
  text = unicodedata.normalize("NFKC", text).casefold()
  # Compose again, because case folding can produce letters and marks that have a composed form.
  return unicodedata.normalize("NFC", text).translate(_KEY)


def sentence_key(text: str) -> int:
  """Returns a 64-bit hash of a text's `text_key`, or of the text itself if its key is empty."""
  return _bits(_key(text))


def keys(source: str, target: str) -> tuple[int, int, int]:
  """Returns the `sentence_key` of each text, and a 64-bit hash of the pair."""
  first, second = _key(source), _key(target)
  return _bits(first), _bits(second), _bits(f"{first}\0{second}")


# Cached, because each text's key is used three times: once to detect copies, twice for hashes.
@functools.lru_cache(maxsize=16)
def _key(text: str) -> str:
  return text_key(text) or text


def _bits(key: str) -> int:
  digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little")


class _KeyTable(dict):
  """Table for `str.translate` that removes everything except letters, marks and digits."""

  def __missing__(self, code: int) -> int | None:
    value = code if unicodedata.category(chr(code))[0] in "LMN" else None
    self[code] = value
    return value


_KEY = _KeyTable()
_ASCII_KEY = {code: ord(chr(code).lower()) if chr(code).isalnum() else None for code in range(128)}


@functools.cache
def _invisible() -> re.Pattern[str]:
  """Returns a pattern for control and format characters that do not affect the visible text."""
  characters = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs")
    and not character.isspace()
    and character not in _VISIBLE
    and character not in "\u200c\u200d"
  ]
  everywhere = "".join(map(re.escape, characters))
  # Keep a zero-width joiner after an emoji, its skin color or its variation selector, because it
  # joins two emoji.
  return re.compile(
    f"[{everywhere}]|(?<![{_JOINING}])\u200c"
    f"|(?<![{_JOINING}\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])\u200d"
  )


def _width(text: str, scripts: tuple[str, ...]) -> float:
  """Returns the length of a text in equivalent alphabetic characters.

  In some scripts, each character counts as several alphabetic characters. The script is the first
  entry in `scripts`. If `scripts` is empty, it is a script with at least half of the letters.
  """
  if scripts:
    return len(text) * _DENSITY.get(scripts[0], 1.0)
  dense = (x for script, x in _DENSITY.items() if _has_share(text, (script,), 0.5))
  return len(text) * max(dense, default=1.0)


@functools.cache
def _letters(scripts: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
  """Returns patterns for letters in `scripts` (if empty, in any script) and for other letters."""
  if not scripts:
    return re.compile(r"[^\W\d_]+"), re.compile("(?!)")
  letters = "".join(_BLOCKS[script] for script in scripts)
  return re.compile(f"[{letters}]+"), re.compile(rf"[^\W\d_{letters}]+")


def _has_share(text: str, scripts: tuple[str, ...], share: float) -> bool:
  """Returns whether at least one letter and `share` of all letters belong to `scripts`."""
  script_letters, other_letters = _letters(scripts)
  other_runs = other_letters.findall(text)
  if not other_runs:
    return script_letters.search(text) is not None
  count = sum(map(len, script_letters.findall(text)))
  return count > 0 and count >= share * (count + sum(map(len, other_runs)))


class EvaluationSentences:
  """Keys of evaluation sentences, with the names of the sets that contain each sentence.

  Each sentence uses 16 bytes of memory. With 10 million evaluation sentences, about one in 2
  trillion unrelated texts has the same key as an evaluation sentence by chance.

  Attributes:
    names: Sorted names of the evaluation sets. A set may be empty.
    keys_K: `sentence_key` of each sentence, uint64, ascending.
    sets_K: Bit mask for each sentence, uint64. Bit i is 1 if the sentence is in the set `names[i]`.
  """

  def __init__(self, names: Sequence[str], keys_K: np.ndarray, sets_K: np.ndarray):
    self.names = tuple(names)
    self.keys_K = np.ascontiguousarray(keys_K, np.uint64)
    self.sets_K = np.ascontiguousarray(sets_K, np.uint64)
    # Python's bisect looks up a single key several times faster than NumPy.
    self._keys = self.keys_K.data

  def __reduce__(self) -> tuple[Any, ...]:
    return type(self), (self.names, self.keys_K, self.sets_K)

  @classmethod
  def from_texts(cls, sentences: Iterable[tuple[str, str]]) -> "EvaluationSentences":
    """Collects sentences from (set, text) pairs. Raises OverflowError for more than 64 sets."""
    keys: dict[str, array.array] = {}
    for name, text in sentences:
      hashes = keys.setdefault(name, array.array("Q"))
      text = normalize(text)
      if any(map(str.isalnum, text)):
        hashes.append(sentence_key(text))
    names = sorted(keys)
    unique = [np.unique(np.frombuffer(keys[name], np.uint64)) for name in names]
    keys_K = np.unique(np.concatenate([np.empty(0, np.uint64), *unique]))
    sets_K = np.zeros(len(keys_K), np.uint64)
    for bit, set_keys_N in enumerate(unique):
      sets_K[np.searchsorted(keys_K, set_keys_N)] |= np.uint64(1 << bit)
    return cls(names, keys_K, sets_K)

  def sets(self, key: int) -> tuple[str, ...]:
    """Returns the names of the evaluation sets that contain a sentence with the given key."""
    row = bisect.bisect_left(self._keys, key)
    if row == len(self._keys) or self._keys[row] != key:
      return ()
    bits = int(self.sets_K[row])
    return tuple(name for i, name in enumerate(self.names) if bits >> i & 1)

  @property
  def counts(self) -> dict[str, int]:
    """Number of distinct sentences in each set. A sentence in several sets counts for each set."""
    return {
      name: int(np.count_nonzero(self.sets_K & np.uint64(1 << bit)))
      for bit, name in enumerate(self.names)
    }

  @property
  def digest(self) -> str:
    """Hexadecimal hash of the keys and sets."""
    hashed = hashlib.sha256("\n".join(self.names).encode())
    for values in (self.keys_K, self.sets_K):
      hashed.update(values.astype("<u8").tobytes())
    return hashed.hexdigest()

  def save(self, path: str | os.PathLike) -> None:
    """Saves the sentences to an .npz file."""
    with open(path, "wb") as stream:
      np.savez(stream, names=np.array(self.names, "U"), keys=self.keys_K, sets=self.sets_K)

  @classmethod
  def load(cls, path: str | os.PathLike) -> "EvaluationSentences":
    """Loads the sentences from a file that `save` wrote."""
    with np.load(path) as arrays:
      return cls(arrays["names"].tolist(), arrays["keys"], arrays["sets"])
