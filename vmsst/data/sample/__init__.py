"""A small parallel corpus in eight languages, included in the package.

Every sentence says who does what, where and when. Sentences are numbered, and sentences with the
same number have the same meaning in every language. Each validation sentence combines a predicate
with a subject, a place and a time that never occur with this predicate in training. Nothing here
imports TensorFlow.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vmsst import errors, languages

_PHRASES = json.loads(  # By language. All languages have the same phrase names in the same order.
  pathlib.Path(__file__).with_name("phrases.json").read_text(encoding="utf-8")
)
LANGUAGES = tuple(_PHRASES)
SPLITS = ("train", "validation")
# For each predicate, one in this many subjects, places and times is held out for validation.
_SUBJECT_FOLDS = 4
_PLACE_FOLDS = 5
_TIME_FOLDS = 4
_SEED = 20
FRAMES = ("present", "past", "want")
# Verb agreement of each subject: f or m (third person singular), pl (third person plural) or we.
# Subjects with different agreement alternate, so that the subjects held out for validation (every
# fourth) differ in agreement.
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
  """The meaning of a sentence, with one name for each slot."""

  frame: str
  subject: str
  predicate: str
  place: str
  time: str


@dataclasses.dataclass(frozen=True)
class Phrasebook:
  """One language's vocabulary and word order, as read from `phrases.json`.

  A frame, one of FRAMES, determines the form of the verb, for example the past tense.

  Attributes:
    about: Notes for people who edit `phrases.json`.
    subjects: Noun phrase for each subject, or an empty string if the verb form alone expresses the
      subject.
    forms: Names of the forms in each entry of `predicates`.
    predicates: Forms of each predicate, separated by spaces ("-" is an empty form). If the object
      is a separate word, the forms are followed by " / " and the object.
    places: Adverbial for each place.
    times: Adverbial for each time in every frame.
    verbs: For each frame and agreement (see AGREEMENT), a template for the finite verb, with
      placeholders for `forms`.
    order: For each frame, a sentence template, with placeholders for subject, verb, object, place,
      time and `forms`.
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
    """Returns the sentence that expresses `meaning`."""
    text = self.blank.join(self.words(meaning))
    return text[0].upper() + text[1:] + self.stop

  def words(self, meaning: Meaning) -> list[str]:
    """Returns the words of the sentence, or phrases if the language is written without spaces."""
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
    """Maps each predicate to its forms, by form name, and its object, under the key "object"."""
    rows = {}
    for predicate, row in self.predicates.items():
      forms, _, obj = row.partition(" / ")
      values = ["" if form == "-" else form for form in forms.split()]
      rows[predicate] = {**dict(zip(self.forms, values, strict=True)), "object": obj}
    return rows


@functools.cache
def phrasebook(language: str) -> Phrasebook:
  """Returns a language's phrasebook. Raises KeyError if the sample lacks the language."""
  return Phrasebook(**_PHRASES[language])


def sentence(meaning: int, language: str, split: str = "train") -> str:
  """Returns the sentence in `language` that expresses the meaning with the given number.

  Raises:
    InputError: If `split` is not a split of the sample.
    IndexError: If the number of the meaning is too high for the split.
  """
  return phrasebook(language).sentence(slots(meaning, split))


def other_codes(codes: Sequence[str] | None = None) -> list[str]:
  """Returns the codes that the corpus uses for languages other than English.

  Args:
    codes: Language codes in any standard (default: all languages).

  Raises:
    InputError: If a language is not in the corpus.
  """
  codes_by_language = {languages.language(code): code for code in LANGUAGES if code != "en"}
  selection = (
    list(codes_by_language) if codes is None else [languages.language(code) for code in codes]
  )
  for language in selection:
    if language not in codes_by_language:
      raise errors.InputError(
        f"the sample corpus does not include {language.name}; choose English or "
        f"{', '.join(language.name for language in codes_by_language)}"
      )
  return [codes_by_language[language] for language in selection]


def load_sample(split: str = "train", count: int | None = None) -> dict[str, list[str]]:
  """Returns the sample corpus as parallel lists of sentences, by language code.

  Args:
    split: "train" or "validation".
    count: Number of sentences per language (default: the whole split).

  Raises:
    InputError: If `split` is not a split of the sample.
    IndexError: If the split has fewer than `count` sentences.
  """
  numbers = range(num_meanings(split) if count is None else count)
  return {code: [sentence(x, code, split) for x in numbers] for code in LANGUAGES}


def num_meanings(split: str) -> int:
  """Returns the number of distinct meanings in a split."""
  return len(FRAMES) * len(PREDICATES) * int(np.prod(_choices(split)))


def slots(meaning: int, split: str = "train") -> Meaning:
  """Returns the meaning with a given number. Meanings are numbered in a fixed pseudo-random order.

  Raises:
    IndexError: If the number of the meaning is too high for the split.
  """
  num_subjects, num_places, num_times = _choices(split)
  # The mixed-radix digits of the index select the filler for each slot.
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
  """Returns how many subjects, places and times occur with each predicate in a split."""
  return (
    len(_allowed_fillers(len(SUBJECTS), _SUBJECT_FOLDS, 0, split)),
    len(_allowed_fillers(len(PLACES), _PLACE_FOLDS, 0, split)),
    len(_allowed_fillers(len(TIMES["present"]), _TIME_FOLDS, 0, split)),
  )


@functools.cache
def _allowed_fillers(count: int, folds: int, predicate: int, split: str) -> tuple[int, ...]:
  """Returns the indices (below `count`) of the fillers that occur with a predicate in a split."""
  errors.check_choice("split", split, SPLITS)
  held_out = split == "validation"
  return tuple(i for i in range(count) if ((i + predicate) % folds == 0) == held_out)


@functools.cache
def _order(total: int) -> np.ndarray:
  """Returns a fixed permutation. RandomState produces the same result in every NumPy version."""
  return np.random.RandomState(_SEED).permutation(total)


def vocabulary_path() -> str:
  """Returns the path of the included SentencePiece model (ids: 0 padding, 1 EOS, 2 unknown).

  The model is BPE with byte fallback, trained on the first 10,000 training meanings in every
  language. With such a small corpus, the unigram algorithm would cut most words into fragments.
  """
  return str(pathlib.Path(__file__).with_name("vocabulary.model"))
