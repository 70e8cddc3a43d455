"""A small parallel corpus in eight languages that ships with the package.

Every sentence says who does what, where and when. A number stands for the same meaning in every
language. The validation split combines subjects, predicates, places and times that training never
combines. Nothing here imports TensorFlow.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vmsst import errors, languages

_PHRASES = json.loads(  # by language; the names of phrases are the same in all, in the same order
  pathlib.Path(__file__).with_name("phrases.json").read_text(encoding="utf-8")
)
LANGUAGES = tuple(_PHRASES)
SPLITS = ("train", "validation")
# One in this many fillers of each slot is held out.
_SUBJECT_FOLDS = 4
_PLACE_FOLDS = 5
_TIME_FOLDS = 4
_SEED = 20
FRAMES = ("present", "past", "want")
# Agreement of each subject: f, m (third person singular), pl (third person plural), we.
# The order mixes the agreements, because the validation split holds out every fourth subject.
AGREEMENT: Mapping[str, str] = {
  "sister": "f",
  "brother": "m",
  "neighbors": "pl",
  "we": "we",
  "grandfather": "m",
  "children": "pl",
  "mother": "f",
  "father": "m",
  "friends": "pl",
  "grandmother": "f",
  "uncle": "m",
  "singer": "f",
  "aunt": "f",
  "wife and I": "we",
  "doctor": "m",
  "tourists": "pl",
  "teacher": "m",
  "pupil": "f",
  "workers": "pl",
  "taxi driver": "m",
}
SUBJECTS = tuple(AGREEMENT)
PREDICATES, PLACES, _TIMES = (
  tuple(_PHRASES["en"][slot]) for slot in ("predicates", "places", "times")
)
_PER_FRAME = len(_TIMES) // len(FRAMES)
TIMES = {frame: _TIMES[_PER_FRAME * i : _PER_FRAME * (i + 1)] for i, frame in enumerate(FRAMES)}


class Meaning(NamedTuple):
  """What a sentence says: one name for each slot above."""

  frame: str
  subject: str
  predicate: str
  place: str
  time: str


@dataclasses.dataclass(frozen=True)
class Phrasebook:
  """The words of one language and their order, as in `phrases.json`.

  Attributes:
    about: Notes for editors of the file.
    subjects: Noun phrase of each subject; empty if the verb form alone says it.
    forms: Names of the forms in a row of `predicates`.
    predicates: A row for each predicate: its forms, separated by blanks ("-" is an empty form),
      then, if the object is a word of its own, " / " and the object.
    places: Adverbial of each place.
    times: Adverbial of each time, all frames together.
    verbs: Per frame, the finite verb of each agreement, a template over `forms`.
    order: Per frame, a template over subject, verb, object, place, time and `forms`.
    blank: Separator between words.
    stop: Punctuation mark at the end of a sentence.
  """

  about: Sequence[str]
  subjects: Mapping[str, str]
  forms: Sequence[str]
  predicates: Mapping[str, str]
  places: Mapping[str, str]
  times: Mapping[str, str]
  verbs: Mapping[str, Mapping[str, str]]
  order: Mapping[str, str]
  blank: str = " "
  stop: str = "."

  def sentence(self, meaning: Meaning) -> str:
    """Returns the sentence for `meaning`."""
    text = self.blank.join(self.words(meaning))
    return text[0].upper() + text[1:] + self.stop

  def words(self, meaning: Meaning) -> list[str]:
    """Returns the words of that sentence, or its phrases in a language written without blanks."""
    forms = self._rows[meaning.predicate]
    text = self.order[meaning.frame].format(
      subject=self.subjects[meaning.subject],
      verb=self.verbs[meaning.frame][AGREEMENT[meaning.subject]].format(**forms),
      place=self.places[meaning.place],
      time=self.times[meaning.time],
      **forms,
    )
    return text.split()

  @functools.cached_property
  def _rows(self) -> dict[str, dict[str, str]]:
    """Forms of every predicate by name, including the object."""
    rows = {}
    for predicate, row in self.predicates.items():
      forms, _, obj = row.partition(" / ")
      values = ["" if form == "-" else form for form in forms.split()]
      rows[predicate] = {**dict(zip(self.forms, values, strict=True)), "object": obj}
    return rows


@functools.cache
def phrasebook(language: str) -> Phrasebook:
  """Returns the phrases of a language; KeyError if the sample has no such language."""
  return Phrasebook(**_PHRASES[language])


def sentence(meaning: int, language: str, split: str = "train") -> str:
  """Returns the sentence in a language with the meaning of a number.

  Raises:
    InputError: the sample has no such split.
    IndexError: the split has no meaning of that number.
  """
  return phrasebook(language).sentence(slots(meaning, split))


def other_codes(codes: Sequence[str] | None = None) -> list[str]:
  """Returns the corpus's codes of languages other than English.

  Args:
    codes: Codes of the languages, of any standard (default: all).

  Raises:
    InputError: a language is not in the corpus.
  """
  codes_by_language = {languages.language(code): code for code in LANGUAGES if code != "en"}
  selection = (
    list(codes_by_language) if codes is None else [languages.language(code) for code in codes]
  )
  for language in selection:
    if language not in codes_by_language:
      raise errors.InputError(
        f"the sample corpus has no {language.name}; choose English or "
        f"{', '.join(language.name for language in codes_by_language)}"
      )
  return [codes_by_language[language] for language in selection]


def load_sample(split: str = "train", count: int | None = None) -> dict[str, list[str]]:
  """Returns the sample corpus: by language code, sentences in parallel order.

  Args:
    split: "train" or "validation".
    count: Number of sentences of each language (default: the whole split).

  Raises:
    InputError: the sample has no such split.
    IndexError: the split has fewer sentences.
  """
  numbers = range(num_meanings(split) if count is None else count)
  return {code: [sentence(x, code, split) for x in numbers] for code in LANGUAGES}


def num_meanings(split: str) -> int:
  """Returns the number of distinct meanings in a split."""
  return len(FRAMES) * len(PREDICATES) * int(np.prod(_choices(split)))


def slots(meaning: int, split: str = "train") -> Meaning:
  """Returns the meaning of that number; the order of meanings is pseudo-random and fixed.

  Raises:
    IndexError: the split has no meaning of that number.
  """
  num_subjects, num_places, num_times = _choices(split)
  # The digits of the number, in a mixed radix, are the choices for the slots.
  index = int(_order(num_meanings(split))[meaning])
  index, frame = divmod(index, len(FRAMES))
  index, time = divmod(index, num_times)
  index, place_number = divmod(index, num_places)
  predicate, subject = divmod(index, num_subjects)

  def pick(names: Sequence[str], folds: int, rank: int) -> str:
    return names[_allowed_fillers(len(names), folds, predicate, split)[rank]]

  frame_name = FRAMES[frame]
  return Meaning(
    frame=frame_name,
    subject=pick(SUBJECTS, _SUBJECT_FOLDS, subject),
    predicate=PREDICATES[predicate],
    place=pick(PLACES, _PLACE_FOLDS, place_number),
    time=pick(TIMES[frame_name], _TIME_FOLDS, time),
  )


def _choices(split: str) -> tuple[int, int, int]:
  """Returns the counts of subjects, places and times per predicate, equal for all predicates."""
  return (
    len(_allowed_fillers(len(SUBJECTS), _SUBJECT_FOLDS, 0, split)),
    len(_allowed_fillers(len(PLACES), _PLACE_FOLDS, 0, split)),
    len(_allowed_fillers(len(TIMES["present"]), _TIME_FOLDS, 0, split)),
  )


@functools.cache
def _allowed_fillers(count: int, folds: int, predicate: int, split: str) -> tuple[int, ...]:
  """Returns the indices of the fillers that a predicate takes in a split, out of `count`."""
  errors.check_choice("split", split, SPLITS)
  held_out = split == "validation"
  return tuple(i for i in range(count) if ((i + predicate) % folds == 0) == held_out)


@functools.cache
def _order(total: int) -> np.ndarray:
  """Returns a fixed permutation, [total]; NumPy guarantees that RandomState keeps its stream."""
  return np.random.RandomState(_SEED).permutation(total)


def vocabulary_path() -> str:
  """Returns the path of the shipped SentencePiece model (ids: 0 padding, 1 EOS, 2 unknown).

  It is BPE with byte fallback, trained on the first 10,000 training meanings in every language. The
  unigram algorithm would cut most words of so small a corpus into fragments.
  """
  return str(pathlib.Path(__file__).with_name("vocabulary.model"))
