"""Splits text into words by the rules of its language, the same for training and for inference.

The words of the EMS paper (section IV-B): jieba's in Chinese, Juman++'s in Japanese, those of the
Moses tokenizer in every other language. Letters become small only afterward, since "Mr." is an
abbreviation and "mr." is none. (The released code does so in training, but lower-cases first when
it embeds.)

jieba splits simplified and traditional Chinese, Wu and Cantonese. The Moses tokenizer, as
`sacremoses` has it, knows the abbreviations of some forty languages by their ISO 639-1 codes
(639-3 where there is none), and takes those of English for the others; apostrophes stay with one of
their neighbors in English, French and Italian and stand alone elsewhere. Nothing is escaped: "&"
stays "&". Juman++ is its own program, `jumanpp`, started once for each list of texts; what stands
between spaces is analyzed on its own.

The packages are imported when a language first needs them: `pip install 'vmsst[ems]'`.
"""

import functools
import logging
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from vmsst import errors, languages
from vmsst.languages import Language

Languages = str | Language | Sequence[str | Language] | None
"""One language of all texts, or one for each text: codes of any standard, or rows of the table."""

_CHINESE = ("cmn", "wuu", "yue")
_JAPANESE = "jpn"
# Characters that Juman++ is given at once: it refuses more than some thousands of bytes.
_JAPANESE_STRETCH = 1000


def split_words(texts: Sequence[str], language: Languages) -> list[str]:
  """Every text with one space between its words, and none around them.

  Args:
    texts: Whole sentences, in the letters that they were written in.
    language: Their language, or one for each of them.

  Raises:
    InputError: no language is given, or an unknown one, or a package or program that its words need
      is not installed; the message says how to install it.
    ValueError: there are more or fewer languages than texts.
  """
  if language is None:
    raise errors.InputError(
      "this vocabulary splits text into words by the rules of its language: pass language=, such "
      'as language="de", or one for each text'
    )
  if isinstance(language, (str, Language)):
    return _splitter(_row(language))(texts)
  if len(language) != len(texts):
    raise ValueError(f"{len(language)} languages for {len(texts)} texts")
  places: dict[Language, list[int]] = {}
  row_of = functools.cache(_row)
  for place, one in enumerate(language):
    places.setdefault(row_of(one), []).append(place)
  words = [""] * len(texts)
  for row, of_row in places.items():
    for place, text in zip(of_row, _splitter(row)([texts[i] for i in of_row]), strict=True):
      words[place] = text
  return words


def _row(language: str | Language) -> Language:
  return language if isinstance(language, Language) else languages.language(language)


def _splitter(language: Language) -> Callable[[Sequence[str]], list[str]]:
  """What splits texts of a language."""
  cut: Callable[[str], Any]
  if language.iso639_3 in _CHINESE:
    cut = _jieba()
  elif language.iso639_3 == _JAPANESE:
    return _split_japanese
  else:
    cut = _moses(language)
  return lambda texts: [" ".join(" ".join(cut(text)).split()) for text in texts]


@functools.cache
def _moses(language: Language) -> Callable[[str], list[str]]:
  try:
    import sacremoses
  except ImportError:
    raise _missing("sacremoses", language.name) from None
  tokenizer = sacremoses.MosesTokenizer(language.iso639_1 or language.iso639_3)
  # As its own, which make sets of all letters of all scripts anew for each abbreviation: fifty
  # times as slow.
  letters, small = _letters(tokenizer.IsAlpha), _letters(tokenizer.IsLower)
  tokenizer.isanyalpha = lambda text: not letters.isdisjoint(text)
  tokenizer.islower = small.issuperset
  return functools.partial(tokenizer.tokenize, escape=False)


@functools.cache
def _letters(letters: str) -> frozenset[str]:
  return frozenset(letters)


@functools.cache
def _jieba() -> Callable[[str], Any]:
  with warnings.catch_warnings():  # of a package that was last released in 2020
    warnings.simplefilter("ignore")
    try:
      import jieba
    except ImportError:
      raise _missing("jieba", "Chinese") from None
  jieba.setLogLevel(logging.WARNING)
  tokenizer = jieba.Tokenizer()
  # Its cache would be read from the system's folder for temporary files, where others can write.
  with tempfile.TemporaryDirectory() as folder:
    tokenizer.tmp_dir = folder
    tokenizer.initialize()
  return tokenizer.cut


def _missing(package: str, name: str) -> errors.InputError:
  return errors.InputError(
    f"text in {name} is split into words by {package}, which is not installed: "
    f"pip install {package} (pip install 'vmsst[ems]' has all that EMS needs but Juman++)"
  )


def _split_japanese(texts: Sequence[str]) -> list[str]:
  program = shutil.which("jumanpp")
  if program is None:
    raise errors.InputError(
      "text in Japanese is split into words by Juman++, whose program jumanpp is not on the PATH; "
      "no pip or apt package has it: build version 2 with its model from "
      "https://github.com/ku-nlp/jumanpp/releases (brew install jumanpp on macOS), or leave "
      "Japanese out"
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
  done = subprocess.run(
    [program],
    input="".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace"),
    capture_output=True,
    check=False,
  )
  analyses = _words_of_analyses(done.stdout.decode("utf-8", errors="replace"))
  if done.returncode or len(analyses) < len(lines):
    reason = done.stderr.decode("utf-8", errors="replace").strip() or "no reason given"
    raise errors.InputError(
      f"{program} (Juman++) analyzed {len(analyses)} of {len(lines)} lines and ended with code "
      f"{done.returncode}: {reason}; try it in a shell: echo '日本語' | jumanpp"
    )
  found = iter(analyses)
  words = [[next(found) or [stretch] for stretch in of_text] for of_text in stretches]
  return [" ".join(word for part in of_text for word in part) for of_text in words]


def _words_of_analyses(output: str) -> list[list[str]]:
  """The words of every analysis that Juman++ prints; of one that failed, none.

  A line is a word and what is known of it: `word reading lemma part-of-speech number ...`. Other
  readings of the word above follow it on lines with a `@` in front; a word `@` has a part of speech
  as any other. `EOS` ends an analysis, `# ERROR` stands in place of one.
  """
  analyses: list[list[str]] = []
  words: list[str] = []
  for line in output.split("\n"):
    if line == "EOS":
      analyses.append(words)
      words = []
      continue
    fields = line.split(" ")
    if len(fields) > 4 and (fields[0] != "@" or fields[4].isdigit()):
      words.append(fields[0])
  return analyses
