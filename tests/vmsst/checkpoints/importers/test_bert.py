"""Imports of BERT and XLM-R encoders, from their files to sentence vectors."""

import json
import shutil

import jax
import numpy as np
import pytest
import released_folders
import tiny_encoders
from flax import linen as nn
from flax import traverse_util
from safetensors.numpy import save_file

import vmsst
from vmsst import errors
from vmsst.checkpoints.importers import bert, weight_tables
from vmsst.data.hugging_face_vocabulary import HuggingFaceVocabulary
from vmsst.networks import bert as networks
from vmsst.networks import t5

SIZES = {
  "vocab_size": 40, "emb_dim": 12, "num_heads": 3, "num_layers": 2, "mlp_dim": 10,
  "max_positions": 9, "num_token_types": 2, "activation": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip
CONFIG = {"model_type": "bert", "pad_token_id": 0, **released_folders.bert_config(SIZES)}


class Network(nn.Module):
  config: networks.BertConfig
  pooler: bool = True

  @nn.compact
  def __call__(self, tokens_BT):
    table = t5.TokenEmbedder(self.config.vocab_size, self.config.emb_dim, name="token_embedder")
    embedded_BTD = table(tokens_BT)
    hidden_BTD = networks.BertEncoder(self.config, name="encoder")(embedded_BTD, tokens_BT != 0)
    if not self.pooler:
      return hidden_BTD, None
    return hidden_BTD, networks.ClsPooler(self.config, name="pooler")(hidden_BTD)


def weights(prefix="", norm=("weight", "bias")):
  """Returns random weights by their names in transformers, with other names of norms."""
  rng, found = np.random.default_rng(0), {}
  for row in bert.rows(SIZES, pooler=True):
    name = row.source.replace("LayerNorm.weight", f"LayerNorm.{norm[0]}")
    name = name.replace("LayerNorm.bias", f"LayerNorm.{norm[1]}")
    found[prefix + name] = rng.normal(size=row.shape)
  return found


def save_hugging_face(folder, arrays, **changes):
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(CONFIG | changes))
  arrays = {
    name: np.asarray(array, np.float32) if array.dtype == np.float64 else array
    for name, array in arrays.items()
  }
  save_file(arrays, folder / "model.safetensors")
  return folder


def apply_network(imported, tokens_BT, padding_id=0):
  """Returns token states and, with a pooler, pooled vectors for ids of the tokenizer."""
  params = traverse_util.unflatten_dict(tiny_encoders.read_arrays(imported.checkpoint), sep="/")
  config = networks.BertConfig(**imported.converted.sizes)
  network = Network(config, pooler="pooler" in params)
  ours_BT = bert.swap_padding(tokens_BT, padding_id)
  return jax.jit(network.apply)({"params": params}, ours_BT)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bert")
  return bert.import_bert(save_hugging_face(folder / "hf", weights()), folder / "out")


@pytest.mark.parametrize(
  ("family", "kind", "changes"),
  [
    ("Bert", "ForPreTraining", {}),  # mBERT; LaBSE has its pooler too
    ("Bert", "Model", {"tokenizer_class": "XLMRobertaTokenizer"}),  # small E5
    ("XLMRoberta", "ForMaskedLM", {"pad_token_id": 1, "layer_norm_eps": 1e-5}),
    ("XLMRoberta", "Model", {"pad_token_id": 1, "type_vocab_size": 1, "hidden_act": "silu"}),
  ],
)
@pytest.mark.filterwarnings("ignore")  # those of another library
def test_token_states_equal_those_of_a_saved_model(tmp_path, family, kind, changes):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  torch.manual_seed(0)
  config = CONFIG | changes
  del config["model_type"]
  model = getattr(transformers, f"{family}{kind}")(
    getattr(transformers, f"{family}Config")(**config)
  ).eval()
  with torch.no_grad():
    for weight in model.parameters():
      weight += 0.3 * torch.randn_like(weight)
  model.save_pretrained(tmp_path / "hf")
  if "tokenizer_class" in changes:
    saved = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(saved | changes))
  found = bert.import_bert(tmp_path / "hf", tmp_path / "out")
  padding_id = 1 if "Roberta" in str((family, changes)) else 0
  assert any("pads with id 1" in note for note in found.converted.notes) == bool(padding_id)
  length = 9 - found.converted.sizes["position_offset"]
  mask_BT = np.arange(length) < np.array([[length], [3], [1]])
  tokens_BT = np.random.default_rng(0).integers(2, 40, size=mask_BT.shape)
  # A tokenizer that pads with 1 starts sentences with 0.
  tokens_BT[:, 0] = 0 if padding_id else 5
  tokens_BT = np.where(mask_BT, tokens_BT, padding_id)
  with torch.no_grad():
    expected = getattr(model, model.base_model_prefix, model)(
      input_ids=torch.tensor(tokens_BT), attention_mask=torch.tensor(mask_BT.astype(np.int64))
    )
  hidden_BTD, pooled_BD = apply_network(found, tokens_BT, padding_id)
  expected_BTD = expected.last_hidden_state.numpy()
  np.testing.assert_allclose(hidden_BTD[mask_BT], expected_BTD[mask_BT], atol=1e-5, rtol=1e-5)
  assert (pooled_BD is None) == (kind == "ForMaskedLM")
  if pooled_BD is not None:
    np.testing.assert_allclose(pooled_BD, expected.pooler_output.numpy(), atol=1e-5, rtol=1e-5)


def test_old_names_and_heads_of_pre_training(tmp_path, imported):
  arrays = weights("bert.", norm=("gamma", "beta")) | {
    "bert.embeddings.position_ids": np.arange(9)[None],
    "cls.predictions.bias": np.zeros(40),
    "cls.seq_relationship.weight": np.zeros((2, 12)),
  }
  found = bert.import_bert(save_hugging_face(tmp_path / "hf", arrays), tmp_path / "out")
  expected = tiny_encoders.read_arrays(imported.checkpoint)
  jax.tree.map(np.testing.assert_array_equal, tiny_encoders.read_arrays(found.checkpoint), expected)
  left_out = {name for name in arrays if "position_ids" in name or name[:4] == "cls."}
  assert found.converted.left_out.keys() == left_out
  text = weight_tables.describe(found)
  assert "left out, pre-training head: cls.predictions.bias, cls.seq_relationship.weight" in text
  assert f"INITIAL_CHECKPOINT_PATH = '{found.checkpoint}'" in text
  assert "swap" not in text
  assert "vmsst.load cannot open it" in text  # there is no tokenizer
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint_0"]


def test_the_rows_of_padding_and_of_0_are_swapped_as_the_tokenizer_pads(
  tmp_path, imported, tokenizer_files
):
  # The model's config says 0: in a small E5, only the tokenizer has the right id.
  arrays = sized(weights())
  folder = save_hugging_face(tmp_path / "hf", arrays, vocab_size=150)
  shutil.copyfile(tokenizer_files["xlmr"], folder / "tokenizer.json")
  (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
  found = bert.import_bert(folder, tmp_path / "out")
  table_VD = tiny_encoders.read_arrays(found.checkpoint)["token_embedder/embedding"]
  plain_VD = arrays["embeddings.word_embeddings.weight"].astype(np.float32)
  np.testing.assert_array_equal(table_VD, plain_VD[[1, 0, *range(2, 150)]])
  ids_BT = np.array([[0, 7, 2, 1, 1]], np.int32)
  ours_BT = bert.swap_padding(ids_BT, 1)
  np.testing.assert_array_equal(ours_BT, [[1, 7, 2, 0, 0]])
  np.testing.assert_array_equal(table_VD[ours_BT], plain_VD[ids_BT])
  assert ours_BT.dtype == np.int32
  assert found.vocabulary == tmp_path / "out" / "tokenizer.json"
  assert "swap" in weight_tables.describe(found)


@pytest.mark.slow
def test_a_folder_without_files_of_sentence_transformers_is_pooled_as_asked(
  tmp_path, tokenizer_files
):
  folder = save_hugging_face(tmp_path / "hf", sized(weights()), vocab_size=150)
  shutil.copyfile(tokenizer_files["bert"], folder / "tokenizer.json")
  vectors = {}
  for pooling in (None, *bert.POOLINGS):
    found = bert.import_bert(folder, tmp_path / str(pooling), pooling=pooling, prefix="x ")
    encoder = vmsst.load(tmp_path / str(pooling))
    assert encoder.max_length == 9
    vectors[pooling] = encoder.encode(["Welt"], progress=False)
  np.testing.assert_array_equal(vectors[None], vectors["mean"])
  # [CLS] x welt [SEP], by the tokenizer's own ids.
  (ids,) = HuggingFaceVocabulary(str(folder / "tokenizer.json")).encode(["x welt"], 9)
  hidden_BTD, pooled_BD = apply_network(found, np.array([ids]))
  np.testing.assert_allclose(vectors["mean"], hidden_BTD.mean(1), atol=1e-6)
  np.testing.assert_allclose(vectors["cls"], hidden_BTD[:, 0], atol=1e-6)
  np.testing.assert_allclose(vectors["pooler"], pooled_BD, atol=1e-6)
  headless = {name: x for name, x in sized(weights()).items() if "pooler" not in name}
  save_hugging_face(tmp_path / "headless", headless, vocab_size=150)
  for pooling, message in (("pooler", "'pooler'.*has none"), ("max", "pooling is 'max'; known")):
    with pytest.raises(errors.InputError, match=message):
      bert.import_bert(tmp_path / "headless", tmp_path / "x", pooling=pooling)


def sized(arrays):
  """Returns the weights with a token table for the tests' tokenizers."""
  table = np.random.default_rng(1).normal(size=(150, 12))
  return arrays | {"embeddings.word_embeddings.weight": table}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model_type": "roberta"}, "model_type.*'roberta'"),
    ({"hidden_act": "gelu_new"}, "hidden_act.*'gelu_new'"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ({"hidden_size": 16}, "hidden_size"),
    ({"layer_norm_eps": 0}, "layer_norm_eps"),
    ({"pad_token_id": None}, "pad_token_id"),
    ({"pad_token_id": 40}, "the padding id is 40"),
    ({"num_hidden_layers": 3}, r"lacks encoder\.layer\.2"),
    ({"num_hidden_layers": 1}, r"holds encoder\.layer\.1"),
    ({"vocab_size": 41}, "word_embeddings"),
  ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, changes, message):
  folder = save_hugging_face(tmp_path / "hf", weights(), **changes)
  with pytest.raises(errors.InputError, match=message):
    bert.import_bert(folder, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_weights_that_do_not_fit_are_refused(tmp_path):
  arrays = weights()
  norm = arrays["embeddings.LayerNorm.weight"]
  for number, (changed, message) in enumerate(
    (
      (arrays | {"classifier.weight": norm}, "classifier"),
      (arrays | {"embeddings.LayerNorm.gamma": norm}, "twice"),
      ({"shared.weight": norm}, "it is not a BERT or XLM-R"),
      (arrays | {"pooler.dense.bias": np.full(12, np.nan)}, r"pooler\.dense\.bias.*NaN values"),
    )
  ):
    folder = save_hugging_face(tmp_path / f"hf{number}", changed)
    with pytest.raises(errors.InputError, match=message):
      bert.import_bert(folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("added", [None, [{"id": 3}], [{"id": "1", "content": "<pad>"}]])
def test_a_tokenizer_without_padding_is_refused(tmp_path, added):
  folder = save_hugging_face(tmp_path / "hf", weights())
  (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
  with pytest.raises(errors.InputError, match=r"tokenizer\.json"):
    bert.import_bert(folder, tmp_path / "out")
