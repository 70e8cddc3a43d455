"""The sentences of the sample, by number and language."""

import functools
import json
import pathlib

from vmsst import errors
from vmsst.tasks.sample import splits
from vmsst.tasks.sample.phrasebook import Phrasebook

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
