"""The sentences of the sample, by number and language."""

import functools
import json
import pathlib
from collections.abc import Sequence

from vmsst import errors, languages
from vmsst.data.sample import splits
from vmsst.data.sample.phrasebook import Phrasebook

LANGUAGES = ("en", "es", "de", "fr", "ru", "tr", "zh", "ar")

_PHRASES = pathlib.Path(__file__).with_name("phrases")


@functools.cache
def phrasebook(language: str) -> Phrasebook:
  """Returns the phrases of a language, which `phrases/<language>.json` holds.

  Raises:
    InputError: the sample has no such language.
  """
  if language not in LANGUAGES:
    raise errors.InputError(
      f"the sample has no language {language!r}; it has {', '.join(LANGUAGES)}"
    )
  content = (_PHRASES / f"{language}.json").read_text(encoding="utf-8")
  return Phrasebook(**json.loads(content))


def sentence(meaning: int, language: str, split: str = "train") -> str:
  """Returns the meaning of that number in words of a language.

  Raises:
    InputError: the sample has no such language or split.
    IndexError: the split has no meaning of that number.
  """
  return phrasebook(language).sentence(splits.slots(meaning, split))


def other_codes(codes: Sequence[str] | None = None) -> list[str]:
  """Returns the corpus's codes of languages other than English.

  Args:
    codes: Codes of the languages, of any standard; None: all.

  Raises:
    InputError: a language is not in the corpus.
  """
  own = {languages.language(code): code for code in LANGUAGES if code != "en"}
  wanted = list(own) if codes is None else [languages.language(code) for code in codes]
  for language in wanted:
    if language not in own:
      raise errors.InputError(
        f"the sample corpus has no {language.name}; choose English or "
        f"{', '.join(language.name for language in own)}"
      )
  return [own[language] for language in wanted]


def load_sample(split: str = "train", count: int | None = None) -> dict[str, list[str]]:
  """Returns the sample corpus: by language code, sentences in parallel order.

  Args:
    split: "train" or "validation".
    count: How many sentences of each language; None returns the whole split.

  Raises:
    InputError: the sample has no such split.
    IndexError: the split has fewer sentences.
  """
  numbers = range(splits.num_meanings(split) if count is None else count)
  return {code: [sentence(x, code, split) for x in numbers] for code in LANGUAGES}
