"""Exported encoders, opened without this library, against `vmsst.load`."""

import contextlib
import gzip
import hashlib
import json
import os

import commands
import conversions
import memory_store
import numpy as np
import pytest
import released_folders
import tiny_encoders
import tiny_tokenizers
from etils import epath
from safetensors.numpy import load_file
from tiny_encoders import BERT, NETWORKS, T5, encoder

import vmsst
from vmsst import errors
from vmsst.checkpoints import t5x
from vmsst.data import sample, vocabularies
from vmsst.encoder import loading
from vmsst.formats import tokenizers
from vmsst.networks import lstm

FORMATS = ("safetensors", "sentence-transformers", "onnx")
LANGUAGES = ("deu", "fra", "rus", "cmn", "ara", "jpn", "hin", "tam", "ell", "kor")
# Empty, blank, longer than the maximum of all encoders here, and misleading texts.
ODD = [
  "", "  ", "word " * 300, "</s> a <pad>", "▁a\tb\u3000c", "ΟΔΟΣ ΣΑΣ’Α Σ", "İ x\u00ad", "<w> 😀",
]  # fmt: skip


@pytest.fixture(scope="session")
def sentences(data_root):
  """Returns 200 real sentences of ten languages."""
  found = []
  for code in LANGUAGES:
    path = data_root / "tatoeba" / f"tatoeba.{code}-eng.{code}.gz"
    found += gzip.decompress(path.read_bytes()).decode().split("\n")[:20]
  return found


@pytest.fixture(scope="session")
def vocabulary_of(tmp_path_factory):
  folder = tmp_path_factory.mktemp("vocabularies")
  text = ["the quick brown fox", "ein Satz, noch ein Satz", "οδός και σας", "भारत में", "日本語"]
  kinds = {
    "unigram": {"user_defined_symbols": ["<w>"]},
    # As EMS's: no EOS token, and symbols for languages.
    "ems": {"unk_id": 1, "eos_id": -1, "model_type": "bpe", "control_symbols": ["<2en>"]},
  }

  def make(kind):
    if kind == "sample":
      return vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
    if kind == "bytes":
      return vocabularies.ByteVocabulary(lowercase=True)
    path = folder / f"{kind}.model"
    path.write_bytes(tiny_tokenizers.sentencepiece_model(text, vocab_size=80, **kinds[kind]))
    return vocabularies.SentencePieceVocabulary(str(path), lowercase=True)

  return make


@pytest.mark.parametrize("kind", ["sample", "unigram", "ems", "bytes"])
def test_a_tokenizer_gives_the_ids_of_the_vocabulary(kind, vocabulary_of, sentences):
  tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers to write them")
  vocabulary = vocabulary_of(kind)
  exported = tokenizers.export_tokenizer(vocabulary)
  tokenizer = tokenizers.Tokenizer.from_str(exported.content.decode())
  tokenizer.encode_special_tokens = exported.splits_special_tokens
  texts = sentences + ODD
  found = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
  assert found == vocabulary.encode(texts, 10_000)
  assert tokenizer.token_to_id(exported.padding) == exported.padding_id == 0


@pytest.mark.parametrize(
  ("symbols", "options"),
  [
    (["ABC", "<SEP>"], {"normalization_rule_name": "nmt_nfkc_cf"}),
    (["™", "½", "…"], {}),
    (["<sep>", "<s", "@user", "<s>"], {"byte_fallback": True, "vocab_size": 400}),
    (["the", "▁said", "x y"], {"remove_extra_whitespaces": False}),
    (["q", "<a>"], {"add_dummy_prefix": False}),
  ],
)
def test_user_defined_symbols_are_found_as_in_sentencepiece(symbols, options, tmp_path):
  tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers to write them")
  path, text = tmp_path / "m.model", ["the quick brown fox said hi to ABC and abc", "1/2 tm x y"]
  options = {"vocab_size": 80, "user_defined_symbols": symbols, **options}
  path.write_bytes(tiny_tokenizers.sentencepiece_model(text, **options))
  vocabulary = vocabularies.SentencePieceVocabulary(str(path))
  exported = tokenizers.export_tokenizer(vocabulary)
  tokenizer = tokenizers.Tokenizer.from_str(exported.content.decode())
  tokenizer.encode_special_tokens = exported.splits_special_tokens
  parts = [*symbols, *symbols, " ", "  ", "the", "x", "AB", "…", "<", "sep", ">", "abc"]
  rng = np.random.default_rng(0)
  texts = ["".join(rng.choice(parts, 1 + i % 7)) for i in range(150)]
  found = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
  assert found == vocabulary.encode(texts, 1000)


def test_symbols_that_overlap_are_refused(tmp_path):
  for number, symbols in enumerate((["abc", "bcd"], ["aba"])):
    path = tmp_path / f"{number}.model"
    options = {"vocab_size": 40, "user_defined_symbols": symbols}
    path.write_bytes(tiny_tokenizers.sentencepiece_model(["the brown fox abcd"], **options))
    with pytest.raises(errors.InputError, match="overlap"):
      tokenizers.export_tokenizer(vocabularies.SentencePieceVocabulary(str(path)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
  ("case", "kind"),
  [("t5", "sample"), ("t5 scanned", "unigram"), ("ems", "ems"), ("labse", "bert"), ("e5", "xlmr")],
)
def test_sentence_transformers_gives_the_same_vectors(
  case, kind, vocabulary_of, tokenizer_files, sentences, tmp_path
):
  st = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
  network = NETWORKS[case]
  if kind in tokenizer_files:
    vocabulary = tokenizers.HuggingFaceVocabulary(str(tokenizer_files[kind]), "query: ")
  else:
    vocabulary = vocabulary_of(kind)
  run = tiny_encoders.save_run(
    tmp_path / "run",
    tiny_encoders.model_of(network, vocabulary, max_length=28),
    languages=["deu", "eng"],
  )
  out = tmp_path / "out"
  conversions.export_sentence_transformers(run, out)
  texts = sentences + ODD
  if kind in tokenizer_files:
    # transformers reads it as padding, this library as unknown text.
    texts.remove("</s> a <pad>")
  opened = st.SentenceTransformer(str(out), device="cpu", local_files_only=True)
  expected_ND = vmsst.load(run, dtype="float32", backend="jax").encode(
    texts, batch_size=256, on_cut=None
  )
  found_ND = opened.encode(texts, show_progress_bar=False)
  assert found_ND.shape == expected_ND.shape
  assert np.ptp(expected_ND, axis=0).min() > 0.01
  np.testing.assert_allclose(found_ND, expected_ND, atol=2e-5, rtol=0)
  name, again = loading.open_encoder(str(out), dtype="float32", backend="jax")
  assert (name, again.languages) == (str(out), ("deu", "eng"))
  np.testing.assert_allclose(
    again.encode(texts, batch_size=256, on_cut=None), expected_ND, atol=1e-6, rtol=0
  )


# The encoder's prefix and prompts, and those of `encode`, `encode_query` and `encode_document`.
PROMPTS = [
  ("", {}, ("", "", "")),
  ("query: ", {}, ("query: ", "query: ", "query: ")),
  ("query: ", {"passage": "text: "}, ("query: ", "query: ", "text: ")),
  ("", {"query": "query: ", "corpus": "text: "}, ("", "query: ", "text: ")),
  ("query: ", {"document": "", "passage": "text: "}, ("query: ", "query: ", "text: ")),
  ("query: ", {"query": "", "document": ""}, ("query: ", "", "")),
  ("query: ", {"query": "a ", "passage": "b ", "default": "c "}, ("query: ", "a ", "b ")),
]


@pytest.mark.parametrize(("prefix", "prompts", "expected"), PROMPTS)
def test_all_prompts_go_there_and_back(prefix, prompts, expected, tokenizer_files, tmp_path):
  """Our encoder, its export in both libraries, and its import from the files of the other."""
  run, out = tmp_path / "run", tmp_path / "out"
  vocabulary = tokenizers.HuggingFaceVocabulary(str(tokenizer_files["bert"]), prefix, prompts)
  tiny_encoders.save_run(
    run, tiny_encoders.model_of(encoder(BERT, head=False), vocabulary, max_length=28)
  )
  original = vmsst.load(run)
  original.save(out)
  # What sentence-transformers looks up, whether it is installed or not.
  written = json.loads((out / "config_sentence_transformers.json").read_text())
  default = written["prompts"].get(written["default_prompt_name"], "")
  assert (default, written["prompts"]["query"], written["prompts"]["document"]) == expected
  export = vmsst.load(out)
  (out / "encoder.json").unlink()
  conversions.import_encoder(out, tmp_path / "back")
  opened = [original, export, vmsst.load(tmp_path / "back")]
  with contextlib.suppress(ImportError):
    import sentence_transformers

    opened.append(sentence_transformers.SentenceTransformer(str(out), device="cpu"))
  for method, prompt in zip(("encode", "encode_query", "encode_document"), expected, strict=True):
    expected_ND = original.encode(["Welt", "eine Welt"], prefix=prompt)
    for each in opened:
      np.testing.assert_allclose(
        getattr(each, method)(["Welt", "eine Welt"]), expected_ND, atol=1e-5
      )
  for name, prompt in prompts.items():
    if (name, prompt) != ("document", ""):  # in the export, that of `encode_document`
      assert opened[-1].prompts[name] == opened[2].prompts[name] == prompt


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_a_trimmed_encoder_has_the_same_vectors_of_its_texts(kind, tmp_path):
  prompts = {"config_sentence_transformers.json": {"prompts": {"query": "query: "}}}
  whole = vmsst.load(released_folders.write(tmp_path / "m", kind, prompts))
  texts, other = ["the red apple", "museum"], ["Café is open", "世界 ents"]
  trimmed = whole.trim(texts)
  assert trimmed.vocabulary.size < whole.vocabulary.size
  trimmed.save(tmp_path / "out")
  for found in (trimmed, vmsst.load(tmp_path / "out")):
    for method in ("encode", "encode_query"):
      expected_ND = getattr(whole, method)(texts)
      np.testing.assert_allclose(getattr(found, method)(texts), expected_ND, atol=1e-6)
    assert np.ptp(found.encode(other), axis=0).min() > 0


def test_an_encoder_unknown_to_transformers_is_refused(tmp_path):
  config = lstm.LstmConfig(vocab_size=300, emb_dim=8, hidden_dim=8, num_layers=1)
  run = tiny_encoders.save_run(
    tmp_path / "run", tiny_encoders.model_of(encoder(config, 16), max_length=40)
  )
  with pytest.raises(errors.InputError, match=r"LSTM encoder.*vmsst export safetensors"):
    conversions.export_sentence_transformers(run, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nothing_is_written_over(tmp_path, capsys):
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "mine").touch()
  for form in FORMATS:
    assert commands.vmsst("export", form, tmp_path / "run", tmp_path / "out") == 1
    assert "exists already" in capsys.readouterr().err
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_in_a_store_is_that_on_this_machine(form, tmp_path, capsys, monkeypatch):
  if form == "onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  store = memory_store.installed(monkeypatch)
  run = tiny_encoders.save_run(
    tmp_path / "run", tiny_encoders.model_of(encoder(BERT, head=False), max_length=20)
  )
  url = f"gs://bucket/{form}"
  assert commands.vmsst("export", form, run, tmp_path / form) == 0
  expected = {path.name: path.read_bytes() for path in (tmp_path / form).glob("*.*")}
  capsys.readouterr()
  assert commands.vmsst("export", form, run, f"{url}/") == 0
  printed = capsys.readouterr().out
  assert (f"Copy {url} to this machine first" in printed) == (form != "safetensors")
  assert {name: store.cat_file(f"{url}/{name}") for name in expected} == expected
  if form == "onnx":
    return
  assert loading.read(url).arrays.keys() == loading.read(run).arrays.keys()
  store.pipe_file(f"{url}/model.safetensors", b"no")
  with pytest.raises(errors.InputError, match=f"^{url}/model.safetensors is damaged"):
    vmsst.load(url)


def test_a_folder_of_safetensors_is_the_encoder_alone(vocabulary_of, tmp_path, capsys):
  run = tiny_encoders.save_run(
    tmp_path / "run",
    tiny_encoders.model_of(encoder(T5, 12), vocabulary_of("sample"), max_length=40),
    languages=["deu", "eng"],
  )
  # Other parameters of a run are left out.
  stored = tiny_encoders.read_arrays(run / "checkpoint_0")
  t5x.write_params(
    epath.Path(run / "checkpoint_1"), {**stored, "decoder/kernel": np.ones((3, 3), np.float32)}
  )
  former = os.umask(0o027)
  try:
    assert commands.vmsst("export", "safetensors", run, tmp_path / "out") == 0
  finally:
    os.umask(former)
  assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}
  assert f"vmsst.load('{tmp_path}/out') opens it" in capsys.readouterr().out
  arrays = load_file(tmp_path / "out" / "model.safetensors")
  assert arrays.keys() == stored.keys()
  expected, found = vmsst.load(run), vmsst.load(tmp_path / "out")
  assert found.languages == expected.languages == ("deu", "eng")
  np.testing.assert_allclose(
    *(each.encode(ODD, on_cut=None) for each in (found, expected)), rtol=0, atol=1e-6
  )
  # An export can be exported again.
  again = conversions.export_safetensors(tmp_path / "out", tmp_path / "again")
  assert (again / "model.safetensors").read_bytes() == (
    tmp_path / "out" / "model.safetensors"
  ).read_bytes()


def test_changed_weights_are_refused(tmp_path):
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(encoder(T5), max_length=40))
  exported = conversions.export_safetensors(run, tmp_path / "out")
  path = exported / "model.safetensors"
  content = path.read_bytes()
  place = int(0.9 * len(content))
  path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
  with pytest.raises(errors.InputError, match=r"model\.safetensors is damaged: .* SHA-256"):
    vmsst.load(exported)
  # Exports of others have no checksums.
  path.write_bytes(content)
  record = json.loads((exported / "encoder.json").read_bytes())
  assert record["weights"] == {"model.safetensors": hashlib.sha256(content).hexdigest()}
  (exported / "encoder.json").write_text(json.dumps({**record, "weights": 3}))
  with pytest.raises(errors.InputError, match=r"encoder\.json: 'weights' is 3"):
    vmsst.load(exported)
  del record["weights"]
  (exported / "encoder.json").write_text(json.dumps(record))
  assert vmsst.load(exported).dimension == encoder(T5).latent_dim
