"""The sentences of the sample, by number and language."""

from collections.abc import Mapping

from vmsst import errors
from vmsst.tasks.sample import ar, de, en, es, fr, ru, splits, tr, zh
from vmsst.tasks.sample.phrasebook import Phrasebook

PHRASEBOOKS: Mapping[str, Phrasebook] = {
  "en": en.BOOK,
  "es": es.BOOK,
  "de": de.BOOK,
  "fr": fr.BOOK,
  "ru": ru.BOOK,
  "tr": tr.BOOK,
  "zh": zh.BOOK,
  "ar": ar.BOOK,
}
LANGUAGES = tuple(PHRASEBOOKS)


def sentence(meaning: int, language: str, split: str = "train") -> str:
  """How a language says the meaning of that number.

  Raises:
    InputError: the sample has no such language or split.
    IndexError: the split has no meaning of that number.
  """
  if language not in PHRASEBOOKS:
    raise errors.InputError(
      f"the sample has no language {language!r}; it has {', '.join(LANGUAGES)}"
    )
  return PHRASEBOOKS[language].sentence(splits.slots(meaning, split))


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
