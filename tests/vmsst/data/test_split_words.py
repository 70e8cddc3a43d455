"""Words of a language are the same wherever text becomes ids."""

import functools
import gzip
import types

import numpy as np
import pytest
import sentencepiece
import seqio

import vmsst
from vmsst import errors
from vmsst.data import features, readers, sample, vocabularies, vocabulary_training
from vmsst.encoder import encoder as encoder_lib
from vmsst.tasks import bitext, evaluation

pytest.importorskip("sacremoses")
pytest.importorskip("jieba")

# By code: a text, and its words in small letters, worked out by hand.
TEXTS = {
  "deu": (
    "Wie geht's Dr. Müller, z.B. um 8.30 Uhr?",
    "wie geht ' s dr. müller , z.b. um 8.30 uhr ?",
  ),
  "fra": ("L'élève dit « C'est M. Dupont »", "l' élève dit « c' est m. dupont »"),
  "tur": ('İstanbul\'da "5.000" KIŞI var...', 'i\u0307stanbul \' da " 5.000 " kişi var ...'),
  "cmn": ("我来到北京清华大学。你好, World!", "我 来到 北京 清华大学 。 你好 , world !"),
  "kor": ("안녕하세요, 세계!(테스트)", "안녕하세요 , 세계 ! ( 테스트 )"),
  "arb": ("مرحبا، كيف حالك؟", "مرحبا ، كيف حالك ؟"),
}
ENGLISH = (
  "Mr. Smith's \"dog\" ISN'T here & there.",
  "mr. smith 's \" dog \" isn 't here & there .",
)
LENGTHS = {"inputs": 64, "targets": 64, "input_language": 1, "target_language": 1}


@pytest.fixture(scope="module")
def vocabulary():
  return vocabularies.SentencePieceVocabulary(
    sample.vocabulary_path(), lowercase=True, pretokenize=True
  )


@pytest.fixture(scope="module")
def expected(vocabulary):
  """Ids of each text with its EOS token, by SentencePiece alone, and of the English one."""
  processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)
  ids = {code: [*processor.encode(words), 1] for code, (_, words) in TEXTS.items()}
  plain = vocabularies.SentencePieceVocabulary(vocabulary.path, lowercase=True)
  for code, (text, _) in TEXTS.items():
    assert plain.encode([text], 99) != [ids[code]]
  return ids | {"eng": [*processor.encode(ENGLISH[1]), 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The texts with the English one, as bitext and as a test set of Tatoeba."""
  folder = tmp_path_factory.mktemp("texts")
  for code, (text, _) in TEXTS.items():
    (folder / f"a.{code}-eng.tsv").write_text(f"{text}\t{ENGLISH[0]}\n", encoding="utf-8")
    for name, line in ((code, text), ("eng", ENGLISH[0])):
      path = folder / f"tatoeba.{code}-eng.{name}.gz"
      path.write_bytes(gzip.compress(f"{line}\n".encode()))
  return folder


def test_training(folder, vocabulary, expected):
  files = readers.find_bitext(str(folder / "*.tsv"))
  name = bitext.files(str(folder / "*.tsv"), vocabulary)
  for file, task in zip(files, seqio.MixtureRegistry.get(name).tasks, strict=True):
    (row,) = task.get_dataset(None, "train", shuffle=False).as_numpy_iterator()
    assert row["inputs"].tolist() == expected[file.source.iso639_3]
    assert row["targets"].tolist() == expected["eng"]


def test_evaluation_tasks(folder, vocabulary, expected):
  tatoeba = seqio.TaskRegistry.get(evaluation.tatoeba(str(folder), vocabulary))
  codes = sorted(TEXTS)
  found = {}
  for row in tatoeba.get_dataset(None, "test", shuffle=False).as_numpy_iterator():
    found[codes[row["task"]], int(row["side"])] = row["inputs"].tolist()
  assert len(found) == 2 * len(TEXTS)
  for (code, side), ids in found.items():
    assert ids == expected["eng" if side else code]
  retrieval = seqio.TaskRegistry.get(evaluation.retrieval(str(folder / "*.tsv"), vocabulary))
  rows = list(retrieval.get_dataset(None, "test", shuffle=False).as_numpy_iterator())
  assert {tuple(row["inputs"].tolist()) for row in rows} == set(map(tuple, expected.values()))


def test_inference(vocabulary, expected, monkeypatch):
  network = types.SimpleNamespace(latent_dim=64)
  encoder = vmsst.Encoder(network, {}, vocabulary, max_length=64)
  # Ids in place of vectors.
  encoder._backend.start = lambda ids_BT: functools.partial(
    np.pad, ids_BT, ((0, 0), (0, 64 - ids_BT.shape[1]))
  )
  wanted = np.array([ids + [0] * (64 - len(ids)) for ids in expected.values()])
  texts = [*(text for text, _ in TEXTS.values()), ENGLISH[0]]
  for text, code, row_D in zip(texts, expected, wanted, strict=True):
    np.testing.assert_array_equal(encoder.encode([text], language=code), row_D[None])
  monkeypatch.setattr(encoder_lib, "_WINDOW", 2)  # languages are cut as sentences are
  np.testing.assert_array_equal(
    encoder.encode(texts, language=list(expected), batch_size=2), wanted
  )
  with pytest.raises(errors.InputError, match="pass language="):
    encoder.encode(texts)
  with pytest.raises(ValueError, match="2 languages for 7 sentences"):
    encoder.encode(texts, language=["de", "fr"])


def test_negatives_are_split_as_targets(vocabulary):
  columns = {
    "inputs": ["L'eau", "x"],
    "targets": ["it's", "y"],
    "negatives": [["he's", ""], ["a.", "b"]],
    "input_language": np.array([[83], [83]]),
    "target_language": np.array([[74], [74]]),
  }
  tokenizer = features.Tokenizer(vocabulary, max_length=None, keep_all=False)
  found = tokenizer(columns, dict.fromkeys(columns))
  plain = vocabularies.SentencePieceVocabulary(vocabulary.path, lowercase=True)

  def ids(rows, text):
    return [[*plain.tokenize([text])[0], 1] if text else []] == [[x for x in rows if x]]

  assert ids(found["inputs"][0].tolist(), "L' eau")
  assert ids(found["targets"][0].tolist(), "it 's")
  for row, texts in zip(found["negatives"].tolist(), [["he 's", ""], ["a .", "b"]], strict=True):
    assert all(map(ids, row, texts))


def test_a_missing_program_is_one_clear_error(tmp_path, monkeypatch, vocabulary):
  (tmp_path / "a.ja-en.tsv").write_text("日本語\ta\n", encoding="utf-8")
  monkeypatch.setenv("PATH", str(tmp_path))
  name = bitext.files(str(tmp_path / "*.tsv"), vocabulary)
  with pytest.raises(errors.InputError, match="jumanpp is not on the PATH"):
    seqio.MixtureRegistry.get(name).get_dataset(LENGTHS)


def test_a_vocabulary_is_trained_on_words(tmp_path):
  (tmp_path / "a.fr-de.tsv").write_text("l'eau d'or\tdas geht's\n" * 50, encoding="utf-8")
  (tmp_path / "b.en.txt").write_text("it's\n" * 50, encoding="utf-8")
  inputs = [str(tmp_path / "a.fr-de.tsv"), str(tmp_path / "b.en.txt")]
  output = str(tmp_path / "new.model")
  vocabulary_training.train_vocabulary(inputs, output, size=40, model_type="bpe", pretokenize=True)
  processor = sentencepiece.SentencePieceProcessor(model_file=output)
  pieces = {processor.id_to_piece(i) for i in range(processor.get_piece_size())}
  assert {"▁eau", "▁or", "▁geht", "▁s", "▁it", "▁'"} <= pieces
  (tmp_path / "plain.txt").write_text("it's\n")
  with pytest.raises(errors.InputError, match=r"plain\.txt.*as in news\.de\.txt"):
    vocabulary_training.train_vocabulary(
      str(tmp_path / "plain.txt"), output, size=40, pretokenize=True
    )
