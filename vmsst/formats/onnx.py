"""Writes encoders as ONNX models, which ONNX Runtime and OpenVINO run without this library.

The graphs are built from the parameters: jax2onnx, which converts functions of JAX, requires an
older Orbax than this library does, and cannot convert these networks for varying lengths.
"""

import contextlib
import json
import os
import pathlib

from tokenizers import Tokenizer

from vmsst import errors
from vmsst.formats import (
  layer_stacks,
  onnx_graph,
  sentence_transformers,
  tensors,
  tokenizers,
  transformers,
)
from vmsst.formats.encoder_json import SavedEncoder

_OPENVINO = (
  "In OpenVINO, compile the model with {'INFERENCE_PRECISION_HINT': 'f32'}; by default, it computes"
  " in bfloat16 on some CPUs"
)


def write(
  saved: SavedEncoder, folder: pathlib.Path, *, pretokenized: bool = False
) -> tokenizers.ExportedTokenizer:
  """Writes an ONNX model and its tokenizer into a folder.

  `model.onnx` has the inputs `input_ids` and `attention_mask`, int64 [B, T] of any size, and the
  output `sentence_embedding`, float32 [B, S]: the vectors of `vmsst.load(path).encode`, in float32
  and up to rounding error. The mask is 1 at tokens and 0 at padding, which follows them. Only a
  table of positions, as in BERT, limits T. Its weights are in `model.onnx_data`.
  `SentenceTransformer(folder, backend="onnx")` reads `last_hidden_state.onnx` instead, whose output
  are the hidden states [B, T, D]. It needs an architecture of transformers.

  `tokenizer.json` returns the inputs: it cuts texts to the maximum length and pads them. A text
  that spells the padding token of an imported tokenizer contains that token there; for other
  differences, see `tokenizers.export`.

  Args:
    saved: The encoder.
    folder: Where to write.
    pretokenized: Texts will be split into words by `vmsst.data.word_splitting.split_words` before
      they are tokenized, as vocabularies like that of EMS require.

  Raises:
    InputError: there is no graph of the encoder, its vocabulary cannot become a `tokenizer.json`,
      or the package onnx is not installed.
  """
  tokenizer = tokenizers.export(saved.assets.vocabulary, pretokenized=pretokenized)
  params = layer_stacks.separate(saved.arrays)
  # The rows of the token table are by the tokenizer's ids.
  table_VD = params[tensors.TOKEN_TABLE]
  params[tensors.TOKEN_TABLE] = transformers.swapped(table_VD, tokenizer.padding_id)
  onnx_graph.build(params, saved.network).write(folder)
  with contextlib.suppress(errors.InputError):  # transformers has no such encoder
    states = {"file_name": onnx_graph.STATES_FILE}
    sentence_transformers.write_modules(saved, tokenizer, folder, model_args=states)
  # Ids do not depend on `Tokenizer.encode_special_tokens`, which applies to added tokens that are
  # marked as special: tokens that a text may spell are not marked, and others are not added.
  record = json.loads(tokenizer.content)
  added = [] if tokenizer.splits_special_tokens else record["added_tokens"]
  record["added_tokens"] = [{**token, "special": False} for token in added]
  runtime = Tokenizer.from_str(json.dumps(record))
  runtime.enable_truncation(saved.assets.max_length)
  runtime.enable_padding(pad_id=tokenizer.padding_id, pad_token=tokenizer.padding)
  path = folder / tokenizers.TOKENIZER_FILE
  path.write_text(runtime.to_str(pretty=False), encoding="utf-8")
  return tokenizer


def usage(
  saved: SavedEncoder, tokenizer: tokenizers.ExportedTokenizer, folder: str | os.PathLike[str]
) -> str:
  """Returns the lines of Python that run what `write` has written to a folder, and its limits."""
  vocabulary = saved.assets.vocabulary
  prefix = getattr(vocabulary, "prefix", "")
  prompts = tokenizers.method_prompts(prefix, getattr(vocabulary, "prompts", {}))
  texts = f"[{prefix!r} + x for x in texts]" if prefix else "texts"
  return "\n".join(
    [
      "  import onnxruntime, tokenizers",
      f"  tokenizer = tokenizers.Tokenizer.from_file({f'{folder}/tokenizer.json'!r})",
      f"  session = onnxruntime.InferenceSession({f'{folder}/{onnx_graph.MODEL_FILE}'!r})",
      f"  batch = tokenizer.encode_batch({texts})",
      "  ids, masks = [x.ids for x in batch], [x.attention_mask for x in batch]",
      "  (vectors,) = session.run(None, {'input_ids': ids, 'attention_mask': masks})",
      _OPENVINO,
      *(
        f"encode_{name} of vmsst puts {prompt!r} before each text instead"
        for name, prompt in prompts.items()
        if prompt != prefix
      ),
      *tokenizers.limits(vocabulary),
    ]
  )
