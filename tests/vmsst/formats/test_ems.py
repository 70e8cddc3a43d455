"""Compares imports of EMS with a BERT of transformers that has the release's names and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import released_folders
import tiny_encoders
import tiny_tokenizers
from flax import traverse_util
from safetensors.numpy import save_file

import vmsst
from ems_jax.networks import ems as networks
from vmsst import cli, errors, languages
from vmsst.formats import ems
from vmsst.networks import transformer

torch = pytest.importorskip("torch", reason="needs torch to read and to compare with")
transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
nn = torch.nn

WIDTH, HEADS, MLP, LAYERS, LENGTH, LANGUAGE_WIDTH, PROJECTED = 16, 2, 24, 2, 12, 6, 5
CODES = ("en", "de", "tl")  # Other libraries call "tl" "fil".
# Components of tensor names in transformers and in the release.
NAMES = {
  "embeddings.word_embeddings": "embedding.word_embedding.embedding",
  "embeddings.position_embeddings": "embedding.position_embedding.position_embeddings",
  "embeddings.LayerNorm": "embedding.layer_norm",
  "attention.self": "attention.self_attention",
}
SENTENCES = ["Hello, world!", "How are you today, dear Welt?", "x", "welt " * 30]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
  """Returns a SentencePiece model trained like EMS's."""
  path = tmp_path_factory.mktemp("spm") / "bpe.model"
  path.write_bytes(
    tiny_tokenizers.sentencepiece_model(
      ["hello , world ! how are you today ?", "wie geht es , welt ?"],
      **{"model_type": "bpe", "vocab_size": 70, "hard_vocab_limit": True, "unk_id": 1},
      **{"eos_id": -1, "control_symbols": ["<MASK>", *(f"<2{code}>" for code in CODES)]},
    )
  )
  return path


def module(**children):
  made = nn.Module()
  for name, child in children.items():
    made.add_module(name, child)
  return made


def norm(width):
  return nn.LayerNorm(width, eps=1e-12)


class Ems(nn.Module):
  """The encoder and its heads. With `shared`, the XTR head shares the token table (an ablation)."""

  def __init__(self, vocab_size=70, shared=False):
    super().__init__()
    sizes = {"vocab_size": vocab_size, "emb_dim": WIDTH, "num_heads": HEADS, "mlp_dim": MLP}
    sizes |= {"num_layers": LAYERS, "max_positions": LENGTH, "activation": "silu"}
    config = transformers.BertConfig(**released_folders.bert_config(sizes))
    self.bert = transformers.BertModel(config, add_pooling_layer=False)
    words = self.bert.embeddings.word_embeddings
    wide, head = WIDTH + LANGUAGE_WIDTH, WIDTH if shared else WIDTH + LANGUAGE_WIDTH
    projection = nn.Linear(head, vocab_size, bias=False)
    if shared:
      projection.weight = words.weight
    self.model = module(
      la_tag_linear=module(
        embedding=nn.Embedding(len(CODES), LANGUAGE_WIDTH), layer_norm=norm(LANGUAGE_WIDTH)
      ),
      transform=module(dense=nn.Linear(wide, head), LayerNorm=norm(head)),
      decoder=module(decoder=projection),
      **({"target_embedding": words} if shared else {}),
    )
    self.alignproj = nn.Sequential(
      nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0), nn.Linear(WIDTH, PROJECTED)
    )
    with torch.no_grad():
      for weight in self.parameters():
        weight += 0.2 * torch.randn_like(weight)
      self.bert.embeddings.token_type_embeddings.weight.zero_()

  def release_state(self):
    """Returns the tensors with the names of the release. In the release, positions start at 1."""
    found = {}
    for name, x in self.state_dict().items():
      for theirs, own in NAMES.items():
        name = name.replace(theirs, own)
      if "position_embeddings" in name:
        x = torch.cat([torch.zeros(1, WIDTH), x])
      if "token_type" not in name:
        found[f"model.{name}" if name.startswith("bert.") else name] = x.detach()
    return found

  def encode(self, tokens_BT):
    mask_BT = (tokens_BT != 0).long()
    hidden_BTD = self.bert(tokens_BT, attention_mask=mask_BT).last_hidden_state
    return (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)

  def logits(self, vector_BS, languages_B):
    language = self.model.la_tag_linear
    input_BE = torch.cat([language.layer_norm(language.embedding(languages_B)), vector_BS], 1)
    head = self.model.transform
    return self.model.decoder.decoder(head.LayerNorm(nn.functional.silu(head.dense(input_BE))))


def release(model):
  """Returns a checkpoint like the ones that the training code of the release saves."""
  state = {f"module.{name}": x for name, x in model.release_state().items()}
  return {"state_dict": state, "step": 3, "best_loss": 1.5, "model_name": "EMS"}


def ids(vocabulary):
  rows = vocabulary.encode(SENTENCES, LENGTH, "en")
  assert max(map(len, rows)) == LENGTH
  return np.array([row + [0] * (LENGTH - len(row)) for row in rows])


@pytest.mark.parametrize("shared", [False, True])
def test_vectors_and_heads_equal_those_of_torch(tmp_path, vocabulary, capsys, shared):
  pytest.importorskip("sacremoses", reason="needs sacremoses to split words")
  torch.manual_seed(0)
  model = Ems(shared=shared).eval()
  torch.save(release(model), tmp_path / "EMS_model.pt")
  command = ["import", "ems", tmp_path / "EMS_model.pt", tmp_path / "out"]
  options = ["--vocabulary", vocabulary, "--heads", HEADS]
  assert cli.main([str(x) for x in command + options]) == 0
  copies = "left out, a copy of the token table: model.decoder.decoder.weight, model.target_emb"
  assert (copies in capsys.readouterr().out) == shared

  encoder = vmsst.load(tmp_path / "out", backend="jax")
  assert encoder.max_length == LENGTH
  assert encoder.vocabulary.lowercase
  tokens_BT = ids(encoder.vocabulary)
  with torch.no_grad():
    expected_BS = model.encode(torch.tensor(tokens_BT))
  found_BS = encoder.encode(SENTENCES, language="en", progress=False)
  np.testing.assert_allclose(found_BS, expected_BS.numpy(), atol=1e-5, rtol=0)

  network = networks.EmsNetwork(
    transformer.TransformerConfig(
      70, WIDTH, HEADS, MLP, LAYERS, max_positions=LENGTH, activation="swish"
    ),
    language_dim=LANGUAGE_WIDTH,
    share_embedding=shared,
    xtr_layer_norm=True,
    projection_dim=PROJECTED,
  )
  arrays = tiny_encoders.read_arrays(tmp_path / "out" / "checkpoint_0")
  shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  wanted = {n: x.shape for n, x in traverse_util.flatten_dict(shapes, sep="/").items()}
  assert {name: x.shape for name, x in arrays.items()} == wanted
  params = {"params": traverse_util.unflatten_dict(arrays, sep="/")}
  theirs_B = np.array([2, 0, 1, 2])
  ours_B = np.array([languages.language(CODES[i]).index for i in theirs_B])
  hidden_BE = network.apply(params, expected_BS.numpy(), ours_B, method="xtr_hidden")
  logits_BV = hidden_BE @ network.apply(params, method="xtr_kernel")
  compared_BC = network.apply(params, expected_BS.numpy(), method="project")
  with torch.no_grad():
    expected_BV = model.logits(expected_BS, torch.tensor(theirs_B)).numpy()
    expected_BC = model.alignproj(expected_BS).numpy()
  np.testing.assert_allclose(logits_BV, expected_BV, atol=1e-5, rtol=1e-5)
  np.testing.assert_allclose(compared_BC, expected_BC, atol=1e-5, rtol=1e-5)


def test_all_forms_of_the_file_give_the_same(tmp_path, vocabulary):
  torch.manual_seed(0)
  model = Ems()
  state = model.release_state()
  old = {
    name.replace("model.transform.", "model.decoder.transform."): x for name, x in state.items()
  }
  torch.save(release(model), tmp_path / "a.pt")
  torch.save({**state, "extra.weight": torch.ones(2, 3)}, tmp_path / "b.pt")
  torch.save({"state_dict": old}, tmp_path / "c.pt")
  save_file({name: x.numpy() for name, x in state.items()}, tmp_path / "d.safetensors")
  found = [
    ems.convert(path, vocabulary=str(vocabulary), num_heads=HEADS)
    for path in sorted(tmp_path.iterdir())
  ]
  expected = found[0].params()
  for converted in found[1:]:
    jax.tree.map(np.testing.assert_array_equal, converted.params(), expected)
  assert list(found[1].left_out) == ["extra.weight"]
  table = expected["language_embedder/embedding"]
  own = [languages.language(code).index for code in CODES]
  np.testing.assert_array_equal(table[own], state["model.la_tag_linear.embedding.weight"])
  assert not np.delete(table, own, axis=0).any()


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ({"state_dict": {}}, r"x\.pt is not an EMS checkpoint; pass the released"),
    (None, "70 pieces and 3 language symbols .* but .* 71 and 3 rows"),
  ],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path, vocabulary, record, message):
  torch.save(record or release(Ems(vocab_size=71)), tmp_path / "x.pt")
  with pytest.raises(errors.InputError, match=message):
    ems.convert(tmp_path / "x.pt", vocabulary=str(vocabulary), num_heads=HEADS)
