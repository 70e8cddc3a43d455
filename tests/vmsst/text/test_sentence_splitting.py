import pytest

from vmsst.text import sentence_splitting


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ('J. S. Bach came. "Why?" he asked. So (it is.) At 3.5 km. it ended... Ok… no', 5),
    ("One!!! Two?! Three", 3),
    ("今天好。明天呢？「好！」她说。", 4),
    ("هل هذا؟ نعم. لا۔ہاں", 4),
    ("नमस्ते। कैसे", 2),
    ("first line\n\n second line \n", 2),
    ("Straße. é una frase", 1),
    ("  spare \t space. Here  ", 2),
    ("", 1),
    (" \n ", 1),
  ],
)
def test_documents_are_split_into_sentences(text, expected):
  found = sentence_splitting.sentences(text)
  assert len(found) == expected, found
  assert "".join("".join(found).split()) == "".join(text.split())  # nothing is lost
  assert all(x == x.strip() for x in found)
  assert expected == 1 or all(found)


def test_what_looks_like_many_ends_is_split_in_linear_time():
  assert len(sentence_splitting.sentences("!" * 100_000 + " " * 100_000)) == 1
