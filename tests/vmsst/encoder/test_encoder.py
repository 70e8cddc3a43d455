import dataclasses
import multiprocessing
import shutil
import sys
import threading

import commands
import jax
import jax.numpy as jnp
import memory_store
import numpy as np
import pytest
import safetensors.numpy
import tiny_encoders
import tiny_models
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import vmsst
from vmsst import errors
from vmsst.data import vocabularies
from vmsst.encoder import encoder as encoder_lib
from vmsst.formats import encoder_json, t5x
from vmsst.networks import sentence_encoder

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
SENTENCES = ["b", "a rather longer sentence than the first", "", "été", "z" * 100, "b"]
MAX_LENGTH = 20
MODEL = tiny_encoders.model_of(NETWORK, max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def params():
  return tiny_encoders.random_params(NETWORK)


@pytest.fixture(scope="module")
def run(tmp_path_factory, params):
  """Returns a finished run: an older checkpoint, the latest one, and other files of a MODEL_DIR."""
  folder = tmp_path_factory.mktemp("run")
  encoder_json.save_encoder_assets(MODEL, folder)
  tiny_encoders.save_training_checkpoint(folder, 90, jax.tree.map(jnp.zeros_like, params))
  # A larger model: parameters that the sentence encoder lacks are ignored.
  tiny_encoders.save_training_checkpoint(
    folder, 100, {**params, "decoder": {"kernel": jnp.ones((3, 3))}}
  )
  t5x.write_checksums(
    epath.Path(folder, "checkpoint_100"), {"state": epath.Path(folder, "checkpoint_100/state")}
  )
  (folder / "checkpoint_200.orbax-checkpoint-tmp-0" / "state").mkdir(parents=True)
  (folder / "checkpoint_300").mkdir()
  (folder / "train").mkdir()
  return folder


@pytest.fixture(scope="module")
def encoder(run):
  return vmsst.load(run, backend="jax")


def one_by_one(params, sentences):
  """Returns vectors without batching, sorting or padding, one sentence per call."""
  apply, vectors = tiny_models.jit(NETWORK.apply), []
  for sentence in sentences:
    ids = [*(byte + 3 for byte in sentence.encode()[: MAX_LENGTH - 1]), 1]
    vectors.append(apply({"params": params}, jnp.array([ids]))[0])
  return np.stack(vectors)


@pytest.fixture(scope="module")
def expected(params):
  return one_by_one(params, SENTENCES)


def test_vectors_come_in_the_order_of_the_input(encoder, expected, monkeypatch):
  for batch_size in (1, 2, 128):
    found_ND = encoder.encode(SENTENCES, batch_size=batch_size)
    assert found_ND.dtype == np.float32
    np.testing.assert_allclose(found_ND, expected, atol=2e-6)
  np.testing.assert_allclose(encoder.encode(SENTENCES[0]), expected[0], atol=2e-6)  # one string
  monkeypatch.setattr(encoder_lib, "_WINDOW", 4)
  found_ND = encoder.encode(iter(SENTENCES * 3), batch_size=2)
  np.testing.assert_allclose(found_ND, np.tile(expected, (3, 1)), atol=2e-6)


def test_the_next_sentences_are_tokenized_while_vectors_are_computed(encoder, monkeypatch):
  monkeypatch.setattr(encoder_lib, "_WINDOW", 2)
  tokenized, tokenize = threading.Event(), type(encoder)._tokenize
  compute = encoder._backend.start

  def record(self, texts, *options):
    if "c" in texts:
      tokenized.set()
    return tokenize(self, texts, *options)

  def start(*batch, **options):
    assert tokenized.wait(10)
    return compute(*batch, **options)

  monkeypatch.setattr(type(encoder), "_tokenize", record)
  monkeypatch.setattr(encoder._backend, "start", start)
  assert encoder.encode(["a", "b", "c", "d"], batch_size=2).shape == (4, 6)


def test_latest_checkpoint_or_the_one_given(run, encoder, expected):
  given = vmsst.load(run / "checkpoint_100").encode(SENTENCES)
  np.testing.assert_allclose(given, expected, atol=2e-6)
  assert not vmsst.load(str(run / "checkpoint_90")).encode(SENTENCES).any()


def test_places_without_an_encoder_are_named(run, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  for path, message in (
    (run / "checkpoint_7", "no folder .*checkpoint_7; .*checkpoint_90"),
    (tmp_path / "file", "file. is not a folder; pass a training run"),
    ("gs://bucket/run", r"pip install 'vmsst\[gcs\]'"),
  ):
    with pytest.raises(errors.InputError, match=message):
      vmsst.load(path)


def test_a_changed_byte_of_an_array_is_named(run, tmp_path):
  shutil.copytree(run, tmp_path / "run")
  checkpoint = tmp_path / "run" / "checkpoint_100"
  largest = max((checkpoint / "state").glob("**/*"), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(bytes(content))
  with pytest.raises(
    errors.InputError, match=rf"checkpoint_100 is damaged: .*{largest.name} has changed"
  ):
    vmsst.load(checkpoint)


def test_texts_that_are_cut_give_one_warning(encoder, caplog, monkeypatch):
  monkeypatch.setattr(encoder_lib, "_WINDOW", 2)
  encoder.encode(["short", "a" * 19])
  assert not caplog.records
  found_ND = encoder.encode(["a" * 20, "b", "a" * 1000, "c"], batch_size=2)
  (record,) = caplog.records
  assert "2 of 4 texts exceed the encoder's maximum of 20 tokens" in record.getMessage()
  np.testing.assert_array_equal(found_ND[0], found_ND[2])
  encoder.encode(["a" * 20], on_cut=None)
  told = []
  encoder.encode(["a" * 20], on_cut=lambda *numbers: told.append(numbers))
  assert told == [(1, 1, MAX_LENGTH)]
  assert len(caplog.records) == 1


@pytest.mark.parametrize(
  ("call", "error", "message"),
  [
    (lambda x: x.encode(["a"], language=["de", "en"]), ValueError, "2 languages for 1 sentences"),
    (lambda x: x.encode(["a"], prompt="", prefix="x"), ValueError, "prefix and prompt are both"),
    (lambda x: x.encode(["a"], truncate_dim=7), ValueError, "truncate_dim is 7"),
  ],
)
def test_wrong_arguments_are_named(encoder, call, error, message):
  with pytest.raises(error, match=message):
    call(encoder)


def test_only_the_settings_can_be_set_and_they_are_checked(encoder):
  with pytest.raises(AttributeError, match="prompts of an encoder cannot be set"):
    encoder.prompts = {}
  with pytest.raises(ValueError, match="max_length is 0"):
    encoder.max_seq_length = 0
  with pytest.raises(ValueError, match="'maxsim'; known: cosine, dot, euclidean, manhattan"):
    encoder.similarity_fn_name = "maxsim"


def test_prompts_are_prefixes_by_name(params):
  vocabulary = vocabularies.ByteVocabulary()
  object.__setattr__(vocabulary, "prompts", {"query": "q: ", "passage": "p: ", "corpus": "c: "})
  encoder = vmsst.Encoder(NETWORK, params, vocabulary, max_length=MAX_LENGTH)
  for found_ND, prefix in (
    (encoder.encode(SENTENCES, prompt_name="corpus"), "c: "),
    (encoder.encode_query(SENTENCES), "q: "),
    (encoder.encode_document(SENTENCES), "p: "),
    (encoder.encode_document(SENTENCES, prompt_name="query"), "q: "),
    (encoder.encode_query(SENTENCES, prefix="x"), "x"),
    (encoder.encode_document(SENTENCES, prompt="x"), "x"),
    (encoder.encode_query(SENTENCES, prompt=""), ""),
  ):
    np.testing.assert_array_equal(found_ND, encoder.encode(SENTENCES, prefix=prefix))


def test_vectors_are_truncated_before_they_are_scaled_and_quantized(encoder, expected):
  found_ND = encoder.encode(SENTENCES, truncate_dim=3, normalize=True)
  cut_ND = expected[:, :3] / np.linalg.norm(expected[:, :3], axis=1, keepdims=True)
  np.testing.assert_allclose(found_ND, cut_ND, atol=1e-5)
  found_N1 = encoder.encode(SENTENCES, truncate_dim=3, precision="ubinary")
  bits_N = [int("".join("01"[int(x > 0)] for x in row) + "00000", 2) for row in expected[:, :3]]
  np.testing.assert_array_equal(found_N1[:, 0], bits_N)


@pytest.mark.filterwarnings("ignore")  # JAX warns of every fork
def test_a_forked_child_reports_the_fork(encoder):
  reading, writing = multiprocessing.Pipe(duplex=False)

  def encode():
    try:
      encoder.encode(["a"])
    except RuntimeError as error:
      writing.send(str(error))

  child = multiprocessing.get_context("fork").Process(target=encode, daemon=True)
  child.start()
  assert reading.poll(30)
  message = reading.recv()
  child.join()
  assert message.startswith("this encoder was loaded in process")
  assert "multiprocessing.get_context('spawn') or 'forkserver'" in message


def test_the_digest_is_of_content(run, params, tmp_path):
  def digest(network=NETWORK, params=params, vocabulary=tiny_encoders.BYTES, max_length=MAX_LENGTH):
    return vmsst.Encoder(network, params, vocabulary, max_length=max_length).digest

  config = dataclasses.replace(NETWORK.config, dropout_rate=0.5)
  others = {
    digest(params=tiny_encoders.random_params(NETWORK, 1)),
    digest(max_length=21),
    digest(dataclasses.replace(NETWORK, config=config)),
    digest(vocabulary=dataclasses.replace(tiny_encoders.BYTES, lowercase=True)),
    vmsst.load(run, dtype="bfloat16").digest,
  }
  assert len(others - {digest()}) == 5
  copies = (run, shutil.copytree(run, tmp_path / "copy"))
  assert {vmsst.load(folder).digest for folder in copies} == {digest()}


# --------------------------------------------------------------------------------------------
# Loading


def assert_params(encoder, params):
  jax.tree.map(np.testing.assert_array_equal, encoder._backend.params, dict(params))


def test_an_exported_folder(params, tmp_path):
  folder = tmp_path / "export"
  tiny_encoders.save_export(folder, MODEL, params)
  encoder = vmsst.load(folder)
  assert encoder.path == str(folder)
  assert_params(encoder, params)
  flat = tiny_encoders.flat(params)
  del flat["mean/kernel"]
  safetensors.numpy.save_file(flat, folder / "model.safetensors")
  with pytest.raises(errors.InputError, match="the parameter mean/kernel is missing"):
    vmsst.load(folder)


def test_a_checkpoint_that_was_moved_with_its_files(run, params, tmp_path):
  shutil.copytree(run / "checkpoint_100", tmp_path / "checkpoint_100")
  encoder_json.save_encoder_assets(MODEL, tmp_path / "checkpoint_100")
  assert_params(vmsst.load(tmp_path / "checkpoint_100"), params)


def test_remote_folders_of_all_kinds(run, params, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  store.put(str(run), "gs://bucket/run", recursive=True)
  tiny_encoders.save_export(tmp_path, MODEL, params)
  store.put(str(tmp_path), "gs://bucket/export", recursive=True)
  for path, name in (
    ("run", "run/checkpoint_100"),
    ("run/checkpoint_100/", "run/checkpoint_100"),
    ("export", "export"),
  ):
    encoder = vmsst.load(f"gs://bucket/{path}")
    assert encoder.path == f"gs://bucket/{name}"
    assert_params(encoder, params)
    assert encoder.vocabulary.size == 259
  with pytest.raises(errors.InputError, match="no folder gs://bucket/none"):
    vmsst.load("gs://bucket/none")
  store.rm("gs://bucket/run/encoder.json")
  with pytest.raises(errors.InputError, match=r"gs://bucket/run/encoder\.json does not exist"):
    vmsst.load("gs://bucket/run")


def run_on_eight_devices(folder):
  """Saves a run whose parameters are sharded, and the vectors of the encoder that it gives."""
  rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
  whole = NamedSharding(rows.mesh, PartitionSpec())
  params = jax.tree.map(
    lambda x: jax.device_put(x, whole if x.shape[0] % 8 else rows),
    tiny_encoders.random_params(NETWORK),
  )
  encoder_json.save_encoder_assets(MODEL, folder)
  tiny_encoders.save_training_checkpoint(folder, 1, params)
  encoder = vmsst.load(folder, backend="jax")
  for tree in (params, encoder._backend.params):
    assert len(tree["mean"]["kernel"].sharding.device_set) == 8
  np.save(folder / "vectors.npy", encoder.encode(SENTENCES))


@pytest.mark.slow
def test_an_encoder_saved_on_eight_devices_is_loaded_on_eight_and_on_one(tmp_path, expected):
  commands.on_eight_devices(__file__, tmp_path)
  for found_ND in (np.load(tmp_path / "vectors.npy"), vmsst.load(tmp_path).encode(SENTENCES)):
    np.testing.assert_allclose(found_ND, expected, atol=2e-6)
