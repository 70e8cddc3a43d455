import line_files
import numpy as np
import pytest
import sentencepiece

from vmsst import errors
from vmsst.data import vocabularies, vocabulary_training

SENTENCES = [
  f"the {a} {b} sees a {c}"
  for a in ("old", "new", "Big")
  for b in ("dog", "cat")
  for c in ("house", "river", "mountain", "bridge")
]


def test_vocab_training_is_deterministic_and_samples_from_all_lines(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(x, x.upper()) for x in SENTENCES])
  line_files.write_lines(tmp_path / "b.txt", ["a plain line", "", "and another one"])
  line_files.write_lines(tmp_path / "long.txt", SENTENCES * 5 + ["zzz"] * 100)
  output = tmp_path / "new.model"

  def train(limit):
    counts = vocabulary_training.train_vocabulary(
      [str(tmp_path / "*.txt"), str(tmp_path / "*.gz")], str(output), size=45, max_sentences=limit
    )
    assert [*counts.values()] == [2, 220, 48]
    return output.read_bytes()

  whole = train(None)
  assert whole == train(270)
  sampled = train(42)
  assert whole != sampled == train(42)
  # None of the first 42 lines has the letter.
  assert "z" in vocabularies.SentencePieceVocabulary(str(output)).decode([*range(3, 45)])
  with pytest.raises(errors.InputError, match="45 pieces from 2 sentences"):
    train(2)


@pytest.mark.parametrize("model_type", vocabulary_training.MODEL_TYPES)
def test_vocab_training_skips_no_line(tmp_path, model_type):
  rng = np.random.default_rng(0)

  def text(letters, count, width):
    return " ".join("".join(rng.choice([*letters], width)) for _ in range(count))

  lines = [
    *(text("abcd", 5, 4) for _ in range(200)),
    text("efgh", 2000, 4),
    text("ijkl", 1, 9000),
    *(text("ω語", 3, 600) for _ in range(3)),  # few characters, more than 4,192 bytes
    *("\u2585 " + text("mnop", 5, 4) for _ in range(200)),
  ]
  path, output = line_files.write_lines(tmp_path / "lines.txt", lines), tmp_path / "new.model"
  counts = vocabulary_training.train_vocabulary(
    str(path), output, size=60, model_type=model_type, character_coverage=1.0
  )
  assert [*counts.values()] == [len(lines)]
  pieces = vocabularies.SentencePieceVocabulary(str(output)).decode([*range(3, 60)])
  assert {*"abcdefghijklmnopω語"} <= {*pieces}


def test_a_vocabulary_is_trained_on_words(tmp_path):
  pytest.importorskip("sacremoses")
  (tmp_path / "a.fr-de.tsv").write_text("l'eau d'or\tdas geht's\n" * 50, encoding="utf-8")
  (tmp_path / "b.en.txt").write_text("it's\n" * 50, encoding="utf-8")
  (tmp_path / "plain.txt").write_text("it's\n")

  def train(*names):
    inputs, output = [str(tmp_path / name) for name in names], str(tmp_path / "new.model")
    options = {"size": 40, "model_type": "bpe", "pretokenize": True}
    vocabulary_training.train_vocabulary(inputs, output, **options)
    processor = sentencepiece.SentencePieceProcessor(model_file=output)
    return {processor.id_to_piece(i) for i in range(processor.get_piece_size())}

  assert {"▁eau", "▁or", "▁geht", "▁s", "▁it", "▁'"} <= train("a.fr-de.tsv", "b.en.txt")
  with pytest.raises(errors.InputError, match=r"plain\.txt.*as in news\.de\.txt"):
    train("plain.txt")
