"""Compares LASER2 and LASER3 with PyTorch's LSTM and transformer, in folders like the releases."""

import argparse
import math
import os
import unicodedata

import numpy as np
import pytest
import released_folders
import tiny_tokenizers

import vmsst
from vmsst import errors
from vmsst.encoder import starting_encoders

torch = pytest.importorskip("torch", reason="needs torch to read and to compare with")
nn, utils = torch.nn, torch.nn.utils.rnn

WIDTH, LAYERS = 16, 2
TEXTS = ["Hello, world!", "", "Wie geht\u00a0es\x07 dir «heute»,\u200b WELT’s ‚Tag‘?", "x ☃☄ ☃",
         "你好,こんにちは。 </s> 5\u00a0000 %", "how are you " * 9]  # fmt: skip
ORIGINAL_NAMES = {"linear": "fc", "norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}


@pytest.fixture(scope="module")
def spm():
  small = [text.lower() for text in tiny_tokenizers.SENTENCES]
  ids = {"pad_id": -1, "bos_id": 1, "eos_id": 2, "unk_id": 0}  # fairseq has other ids
  return tiny_tokenizers.sentencepiece_model(small, vocab_size=90, **ids)


def dictionary(spm):
  """Returns pieces in another order: some are missing, and SentencePiece does not have "never"."""
  import sentencepiece

  model = sentencepiece.SentencePieceProcessor(model_proto=spm)
  return ["☃☄", *(model.id_to_piece(i) for i in range(model.get_piece_size() - 1, 8, -1)), "never"]


def original_batch(spm, bos=False):
  """Returns fairseq's ids of the texts, [B, T], computed like in the original code."""
  import sacremoses
  import sentencepiece

  moses = sacremoses.MosesPunctNormalizer("en", perl_parity=True)
  moses.substitutions[21], moses.substitutions[22] = ("‘", '"'), ("‚", '"')
  model = sentencepiece.SentencePieceProcessor(model_proto=spm)
  ids, rows = {word: 4 + i for i, word in enumerate(dictionary(spm))}, []
  for text in TEXTS:
    text = "".join(" " if unicodedata.category(x)[0] == "C" else x for x in text)
    pieces = " ".join(model.encode(moses.normalize(text).lower(), out_type=str)).split()
    rows.append(torch.tensor([0] * bos + [ids.get(x, 3) for x in pieces] + [2]))
  return utils.pad_sequence(rows, batch_first=True, padding_value=1)


def save(folder, spm, name, record):
  torch.save(record, folder / f"{name}.pt")
  (folder / "laser2.cvocab").write_text("".join(f"{word} 7\n" for word in dictionary(spm)))
  (folder / "laser2.spm").write_bytes(spm)


def save_laser2(folder, spm, **changes):
  rows, half = len(dictionary(spm)) + 5, WIDTH // 2  # one row without a word
  model = nn.ModuleDict({"embed_tokens": nn.Embedding(rows, 6)})
  model["lstm"] = nn.LSTM(6, half, LAYERS, bidirectional=True, batch_first=True)
  params = {"num_embeddings": rows, "padding_idx": 1, "embed_dim": 6, "hidden_size": half}
  params |= {"num_layers": LAYERS, "bidirectional": True, "left_pad": True, "padding_value": 0.0}
  ids = {"<Lua heritage>": 0} | {word: 4 + i for i, word in enumerate(dictionary(spm))}
  record = {"params": params, "model": model.state_dict(), "dictionary": ids}
  save(folder, spm, "laser2", record | changes)
  return model


def save_laser3(folder, spm, pre_norm=True, **options):
  cfg = {"encoder_embed_dim": WIDTH, "encoder_attention_heads": 2, "encoder_ffn_embed_dim": 24,
         "encoder_layers": LAYERS, "encoder_normalize_before": pre_norm}  # fmt: skip
  layer = [WIDTH, 2, 24, 0.0, "relu", 1e-5, True, pre_norm]
  model = nn.ModuleDict({"embed_tokens": nn.Embedding(len(dictionary(spm)) + 4 + pre_norm, WIDTH)})
  model["layers"] = nn.ModuleList(nn.TransformerEncoderLayer(*layer) for _ in range(LAYERS))
  model["layer_norm" if pre_norm else "layernorm_embedding"] = nn.LayerNorm(WIDTH)
  state = {"encoder.version": torch.ones(1), "decoder.version": torch.ones(1)}
  for name, x in model.state_dict().items():
    for theirs, original in ORIGINAL_NAMES.items():
      name = name.replace(theirs, original)
    parts = zip("qkv", x.chunk(3), strict=True) if "in_proj" in name else [("", x)]
    state |= {f"encoder.{name.replace('in_proj_', f'{y}_proj.')}": z.clone() for y, z in parts}
  options = argparse.Namespace(**cfg | {"layernorm_embedding": not pre_norm} | options)
  save(folder, spm, "laser3-zul_Latn.v1", {"model": state, "cfg": {"model": options, "task": None}})
  return model.eval()


def hidden_states(model, tokens_BT):
  """Returns the hidden states of fairseq. The states of padding are -inf."""
  x_BTD, is_padding_BT = model["embed_tokens"](tokens_BT), tokens_BT == 1
  if "lstm" in model:
    lengths = (~is_padding_BT).sum(1)
    packed = utils.pack_padded_sequence(x_BTD, lengths, batch_first=True, enforce_sorted=False)
    x_BTD = utils.pad_packed_sequence(model["lstm"](packed)[0], batch_first=True)[0]
  else:
    rates = [10_000 ** (-i / (WIDTH // 2 - 1)) for i in range(WIDTH // 2)]
    places = range(2, 2 + tokens_BT.shape[1])
    table = [[f(t * rate) for f in (math.sin, math.cos) for rate in rates] for t in places]
    x_BTD = x_BTD * math.sqrt(WIDTH) + torch.tensor(table)
    x_BTD = model["layernorm_embedding"](x_BTD) if "layernorm_embedding" in model else x_BTD
    for layer in model["layers"]:
      x_BTD = layer(x_BTD, src_key_padding_mask=is_padding_BT)
    x_BTD = model["layer_norm"](x_BTD) if "layer_norm" in model else x_BTD
  return x_BTD.masked_fill(is_padding_BT[..., None], -math.inf).detach().numpy()


@pytest.mark.parametrize(
  ("save_encoder", "options"),
  [
    (save_laser2, {}),
    (save_laser3, {"sentemb_criterion": "maxpool"}),
    (save_laser3, {"sentemb_criterion": "cls", "prepend_bos": True, "pre_norm": False}),
  ],
)
def test_ids_and_vectors_are_the_originals_before_and_after_import(
  tmp_path, spm, save_encoder, options
):
  model, tokens_BT = save_encoder(tmp_path, spm, **options), original_batch(spm, len(options) > 1)
  assert {3, 4} < set(tokens_BT.flatten().tolist())  # unknown, and a word that is not a piece
  hidden_BTD = hidden_states(model, tokens_BT)
  expected_BD = hidden_BTD[:, 0] if len(options) > 1 else hidden_BTD.max(1)
  released_folders.import_encoder(tmp_path, tmp_path / "imported")
  found = [vmsst.load(folder) for folder in (tmp_path, tmp_path / "imported")]
  for encoder in found:
    ids = encoder.vocabulary.encode(TEXTS, 200)
    # Pieces outside the dictionary follow it, with the vector of the unknown token.
    rows = model["embed_tokens"].num_embeddings
    ours = [[3 if i >= rows else {0: 1, 1: 0}.get(i, i) for i in row] for row in ids]
    assert ours == [row[row != 1].tolist() for row in tokens_BT]
    assert encoder.vocabulary.tokenize(["a", " "])[1] == []
    for size in (128, 1):
      np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=size), expected_BD, atol=1e-5)
  assert found[0].digest == found[1].digest
  # Training starts from the same file.
  path = starting_encoders.sentencepiece_model(tmp_path)
  assert type(encoder.vocabulary)(path, encoder.vocabulary.prepend_bos).encode(TEXTS, 200) == ids


class Code:
  def __reduce__(self):
    return os.mkdir, ("code",)


def damage(name, content):
  return lambda folder, spm: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
  ("save_encoder", "options", "change", "message"),
  [
    (save_laser2, {"params": Code()}, None, r"laser2\.pt .*could run code"),
    (save_laser2, {}, save_laser3, r"several encoders: laser2\.pt, laser3"),
    (
      save_laser2,
      {},
      lambda folder, _: (folder / "laser2.spm").unlink(),
      r"laser2\.spm does not exist.*http",
    ),
    (
      save_laser3,
      {"cfg": {}},
      damage("laser3-zul_Latn.v1.spm", b""),
      r"v1\.cvocab does not exist.*download",
    ),
    (save_laser3, {}, damage("laser2.cvocab", b"a 1\n"), r"has shape .*, not \(6, 16\)"),
  ],
)
def test_a_damaged_folder_is_one_error_that_names_the_file(
  tmp_path, monkeypatch, spm, save_encoder, options, change, message
):
  monkeypatch.chdir(tmp_path)
  save_encoder(tmp_path, spm, **options)
  if change:
    change(tmp_path, spm)
  with pytest.raises(errors.InputError, match=message):
    vmsst.load(tmp_path)
  assert not (tmp_path / "code").exists()
