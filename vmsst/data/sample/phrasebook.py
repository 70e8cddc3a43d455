"""The slots of a meaning, and how a language fills them.

A meaning is a frame (present habit, past event, wish), a subject, a predicate, a place and a time.
A `Phrasebook` holds the words of one language and their order. It lists every verb form instead of
deriving it by rule, so that a reader of the language can check each form in the table.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FRAMES = ("present", "past", "want")

# Agreement of each subject: f, m (third person singular), pl (third person plural), we.
# The order mixes the agreements because the split holds out every fourth subject (see splits.py).
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

PREDICATES = (
  "buy flowers",
  "buy red apples",
  "sell old books",
  "drink tea",
  "drink a cup of coffee",
  "eat ice cream",
  "read an interesting book",
  "read the newspaper",
  "write a long letter",
  "write short poems",
  "sing an old song",
  "dance",
  "play chess",
  "play the guitar",
  "take photographs",
  "draw a horse",
  "wait for the bus",
  "wait for a guest",
  "look for a present",
  "talk about the weather",
  "talk with a journalist",
  "meet an old friend",
  "help an elderly woman",
  "feed the birds",
  "learn new words",
  "listen to music",
  "listen to the radio",
  "watch a film",
  "order a pizza",
  "tell a funny story",
  "repair old bicycles",
  "work on a new project",
  "take a short break",
  "walk the dog",
  "pick up a parcel",
  "look at old photos",
)

PLACES = (
  "park",
  "market",
  "station",
  "school",
  "library",
  "old town",
  "river",
  "hotel",
  "airport",
  "museum",
)

TIMES: Mapping[str, tuple[str, ...]] = {
  "present": (
    "every morning",
    "every evening",
    "on Sundays",
    "every day",
    "after lunch",
    "in summer",
    "every Friday",
    "on weekends",
  ),
  "past": (
    "yesterday",
    "last week",
    "last night",
    "last Saturday",
    "last month",
    "three days ago",
    "last summer",
    "an hour ago",
  ),
  "want": (
    "tomorrow",
    "tonight",
    "next week",
    "today",
    "next Saturday",
    "next month",
    "tomorrow morning",
    "this weekend",
  ),
}


class Meaning(NamedTuple):
  """What a sentence says: one name for each slot above."""

  frame: str
  subject: str
  predicate: str
  place: str
  time: str


@dataclasses.dataclass(frozen=True)
class Phrasebook:
  """The words of one language and their order, as in a file of `phrases/`.

  Attributes:
    about: Notes for editors of the file.
    subjects: Noun phrase of each subject; empty if the verb form alone says it.
    forms: Names of the forms in a row of `predicates`.
    predicates: A row for each predicate: its forms, separated by blanks ("-" is an empty form),
      then, if the language keeps it apart, " / " and the object.
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
