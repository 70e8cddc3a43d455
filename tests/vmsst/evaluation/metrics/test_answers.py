import string

import pytest

from vmsst.evaluation.metrics import answers


def by_letters(answer):
  """Normalizes as SQuAD describes it, letter by letter and word by word."""
  kept = ""
  for letter in answer.lower():
    if letter not in string.punctuation:
      kept += letter
  words, word = [], ""
  for letter in kept + " ":
    if letter.isalnum() or letter == "_":
      word += letter
    else:
      words.append(" " if word in ("a", "an", "the") else word)
      words.append(" " if letter.isspace() else letter)
      word = ""
  return " ".join("".join(words).split())


@pytest.mark.parametrize(
  ("answer", "expected"),
  [
    ("The Beatles", "beatles"),
    ("  an  Apple,\ta day!", "apple day"),
    ("U.S.A.", "usa"),
    ("A.", ""),
    ("theatre of Athens", "theatre of athens"),
    ("O'Brien–the great", "obrien– great"),  # ASCII punctuation only; a dash ends a word
    ("Ångström 1,000", "ångström 1000"),
    ("«the»", "« »"),
  ],
)
def test_answers_are_normalized(answer, expected):
  assert answers.normalized(answer) == expected
  assert by_letters(answer) == expected


def test_sets_of_answers_meet_after_normalization():
  gold = answers.normalized_set(["14 December 1972 UTC", "December 1972"])
  assert gold & answers.normalized_set(["1969", "the December, 1972"]) == {"december 1972"}
  assert gold.isdisjoint(answers.normalized_set(["1972", "December 1973"]))
  assert answers.normalized_set([]) == frozenset()
