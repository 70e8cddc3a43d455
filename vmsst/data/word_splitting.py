"""Splits text into words by the rules of its language, the same for training and inference.

Words are as in the EMS paper (section IV-B): jieba for Chinese, Juman++ for Japanese, and the
Moses tokenizer for all other languages. Split text before lowercasing it, since "Mr." is an
abbreviation and "mr." is not. (The released code splits first in training, but lowercases first
when it embeds.)

jieba splits simplified and traditional Chinese, Wu and Cantonese. The Moses tokenizer of
`sacremoses` has abbreviations for some forty languages, by ISO 639-1 code (or else 639-3 code),
and uses English ones for all others. Apostrophes stay attached to a word in English, French and
Italian and are separate words elsewhere. Nothing is escaped: "&" stays "&". Juman++ is a program,
`jumanpp`, started once for each list of texts. It analyzes space-separated stretches one by one.

The packages are imported when a language first needs them: `pip install 'vmsst[ems]'`.
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
"""One language for all texts, or one for each text: codes of any standard, or `Language`s."""

_CHINESE = ("cmn", "wuu", "yue")
_JAPANESE = "jpn"
# Characters per line of input to Juman++. It refuses lines of more than a few thousand bytes.
_JAPANESE_STRETCH = 1000


def split_words(texts: Sequence[str], language: Languages) -> list[str]:
  """Returns every text with one space between its words, and none around them.

  Args:
    texts: Whole sentences, not lowercased.
    language: Their language, or one language for each text.

  Raises:
    InputError: the language is missing or unknown, or its package or program is not installed; the
      message explains how to install it.
    ValueError: the numbers of languages and texts differ.
  """
  from vmsst import languages  # reads the table

  if language is None:
    raise errors.InputError(
      "this vocabulary splits text into words by the rules of its language: pass language=, such "
      'as language="de", or one for each text'
    )
  if isinstance(language, (str, languages.Language)):
    language = [language] * len(texts)
  # Group the texts by language, so that each splitter gets all its texts at once.
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
  """Returns texts with spaces for characters that do not print, and punctuation as in Moses.

  This is the normalization of LASER. It applies the rules of English to all languages: quotes of
  all kinds become `"`, dashes `-`, and so on, as in Moses 4.0.

  Raises:
    InputError: sacremoses is not installed.
  """
  with errors.requires("ems", "normalizing punctuation for LASER"):
    import sacremoses
  moses = sacremoses.MosesPunctNormalizer("en", perl_parity=True)
  # Moses 4.0 turns these into double quotes, sacremoses into apostrophes.
  quotes = dict.fromkeys("‘‚", '"')
  moses.substitutions = [(old, quotes.get(old, new)) for old, new in moses.substitutions]
  printing = ("".join(" " if unicodedata.category(x)[0] == "C" else x for x in t) for t in texts)
  return [moses.normalize(text) for text in printing]


@functools.cache
def _moses(language: "Language") -> Callable[[str], list[str]]:
  with errors.requires("ems", f"splitting {language.name} into words"):
    import sacremoses
  tokenizer = sacremoses.MosesTokenizer(language.iso639_1 or language.iso639_3)
  # Fifty times as fast as the methods of sacremoses. They build sets of the letters of all scripts
  # for each abbreviation.
  letters, small = _letters(tokenizer.IsAlpha), _letters(tokenizer.IsLower)
  tokenizer.isanyalpha = lambda text: not letters.isdisjoint(text)
  tokenizer.islower = small.issuperset
  return functools.partial(tokenizer.tokenize, escape=False)


@functools.cache
def _letters(letters: str) -> frozenset[str]:
  return frozenset(letters)


@functools.cache
def _jieba() -> Callable[[str], Any]:
  with warnings.catch_warnings():  # the package was last released in 2020
    warnings.simplefilter("ignore")
    with errors.requires("ems", "splitting Chinese into words"):
      import jieba
  jieba.setLogLevel(logging.WARNING)
  tokenizer = jieba.Tokenizer()
  # By default its cache is in the system's temporary folder, where other users can write.
  with tempfile.TemporaryDirectory() as folder:
    tokenizer.tmp_dir = folder
    tokenizer.initialize()
  return tokenizer.cut


def _split_japanese(texts: Sequence[str]) -> list[str]:
  program = shutil.which("jumanpp")
  if program is None:
    raise errors.InputError(
      "splitting Japanese into words needs Juman++, but jumanpp is not on the PATH; pip and apt do "
      "not have it: build version 2 with its model from https://github.com/ku-nlp/jumanpp/releases "
      "(on macOS, brew install jumanpp), or omit Japanese"
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
  # A line of output is a word and its properties: `word reading lemma part-of-speech number ...`.
  # Alternative readings of a word follow on lines that start with `@`; a word `@` has a part of
  # speech like any other. `EOS` ends an analysis; `# ERROR` replaces a failed one.
  analyses: list[list[str]] = [[]]
  for line in process.stdout.decode("utf-8", errors="replace").split("\n"):
    fields = line.split(" ")
    if line == "EOS":
      analyses.append([])
    elif len(fields) > 4 and (fields[0] != "@" or fields[4].isdigit()):
      analyses[-1].append(fields[0])
  analyses.pop()  # the empty list after the last EOS
  if process.returncode or len(analyses) < len(lines):
    reason = process.stderr.decode("utf-8", errors="replace").strip() or "no reason given"
    raise errors.InputError(
      f"{program} (Juman++) analyzed {len(analyses)} of {len(lines)} lines and exited with code "
      f"{process.returncode}: {reason}; try it in a shell: echo '日本語' | jumanpp"
    )
  analyzed = iter(analyses)
  words = [[next(analyzed) or [stretch] for stretch in of_text] for of_text in stretches]
  return [" ".join(word for analysis in of_text for word in analysis) for of_text in words]
