"""Exports encoders as ONNX models, which ONNX Runtime and OpenVINO run without this library.

The graphs are built from the parameters: jax2onnx, which converts functions of JAX, requires an
older Orbax than this library does, and cannot convert these networks for varying lengths.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping

import tokenizers

from vmsst import arrays, errors, storage
from vmsst.checkpoints import saved_encoders
from vmsst.formats import (
  hugging_face_vocabulary,
  layer_stacks,
  onnx_graph,
  sentence_transformers_folder,
  tokenizer_file,
  transformers_weights,
  weight_tables,
)
from vmsst.jobs import outputs, work_folders

_OPENVINO = (
  "In OpenVINO, compile the model with {'INFERENCE_PRECISION_HINT': 'f32'}; by default, it computes"
  " in bfloat16 on some CPUs"
)


@dataclasses.dataclass(frozen=True)
class Exported:
  """The result of an export.

  Attributes:
    folder: The new folder.
    max_length: Tokens of a sentence, EOS included.
    dimension: Dimensions of a vector.
    prefix: Text to put before every text, such as E5's "query: ".
    prompts: Text to put before queries and documents instead, as "query" and "document".
    pretokenized: Whether texts must be split into words before they are tokenized.
    tokenizer: The tokenizer in the folder, or None.
    problem: Why there is no tokenizer, or an empty text.
  """

  folder: storage.Path
  max_length: int
  dimension: int
  prefix: str
  prompts: Mapping[str, str]
  pretokenized: bool
  tokenizer: tokenizer_file.ExportedTokenizer | None
  problem: str = ""


def export_onnx(
  path: str | os.PathLike[str], output: str | os.PathLike[str], *, pretokenized: bool = False
) -> Exported:
  """Writes an encoder as a folder with an ONNX model and its tokenizer.

  `model.onnx` has the inputs `input_ids` and `attention_mask`, int64 [B, T] of any size, and the
  output `sentence_embedding`, float32 [B, S]: the vectors of `vmsst.load(path).encode`, in float32
  and up to rounding error. The mask is 1 at tokens and 0 at padding, which follows them. Only a
  table of positions, as in BERT, limits T. Its weights are in `model.onnx_data`.
  `SentenceTransformer(output, backend="onnx")` reads `last_hidden_state.onnx` instead, whose output
  are the hidden states [B, T, D]. It needs a `tokenizer.json` and an architecture of transformers.

  OpenVINO computes in bfloat16 on some CPUs, unless its `INFERENCE_PRECISION_HINT` is "f32".

  `tokenizer.json` returns the inputs: it cuts texts to the maximum length and pads them. A text
  that spells the padding token of an imported tokenizer contains that token there; for other
  differences, see `tokenizer_file.export_tokenizer`. A vocabulary that the file cannot express has
  no such file; the ids of the model are then those of the vocabulary.

  Args:
    path: A path that `vmsst.load` opens.
    output: Folder to make, local or in an object store.
    pretokenized: Texts will be split into words by `vmsst.data.word_splitting.split_words` before
      they are tokenized, as vocabularies like that of EMS require for a `tokenizer.json`.

  Raises:
    InputError: there is no encoder, `output` exists, or the package onnx is not installed. Nothing
      is written then.
  """
  target = outputs.new_folder(output)
  onnx_graph.library()
  saved = saved_encoders.read(path)
  vocabulary, max_length = saved.assets.vocabulary, saved.assets.max_length
  tokenizer, problem = None, ""
  try:
    tokenizer = tokenizer_file.export_tokenizer(vocabulary, pretokenized=pretokenized)
  except errors.InputError as error:
    problem = str(error)
  padding_id = arrays.PAD_ID if tokenizer is None else tokenizer.padding_id
  params = layer_stacks.separate(saved.arrays)
  # The rows of the token table are by the tokenizer's ids.
  table_VD = params[weight_tables.TOKEN_TABLE]
  params[weight_tables.TOKEN_TABLE] = transformers_weights.swapped(table_VD, padding_id)
  graph = onnx_graph.build(params, saved.network)
  with work_folders.atomic_folder(target) as partial:
    graph.write(partial)
    if tokenizer is not None:
      states = {"file_name": onnx_graph.STATES_FILE}
      with contextlib.suppress(errors.InputError):  # transformers has no such encoder
        sentence_transformers_folder.write_modules(saved, tokenizer, partial, model_args=states)
      tokenizer_path = partial / hugging_face_vocabulary.TOKENIZER_FILE
      tokenizer_path.write_bytes(_cutting_and_padding(tokenizer, max_length))
  prefix = getattr(vocabulary, "prefix", "")
  return Exported(
    folder=target,
    max_length=max_length,
    dimension=saved.network.latent_dim,
    prefix=prefix,
    prompts=hugging_face_vocabulary.method_prompts(prefix, getattr(vocabulary, "prompts", {})),
    pretokenized=bool(getattr(vocabulary, "pretokenize", False)),
    tokenizer=tokenizer,
    problem=problem,
  )


def describe(exported: Exported) -> str:
  """Returns what was written, the lines of Python that run it, and its limits."""
  folder, tokenizer = exported.folder, exported.tokenizer
  lines = [
    f"{folder}: {exported.dimension}-dimensional vectors of at most {exported.max_length} tokens",
    *outputs.local_only(folder),
  ]
  session = f"  session = onnxruntime.InferenceSession({f'{folder}/{onnx_graph.MODEL_FILE}'!r})"
  run = "  (vectors,) = session.run(None, {'input_ids': ids, 'attention_mask': masks})"
  if tokenizer is None:
    lines += ["  import onnxruntime", session, run, _OPENVINO]
    lines.append("ids are those of the vocabulary, followed by zeros, where masks are 0 and not 1")
    lines.append(f"There is no tokenizer.json: {exported.problem}")
    return "\n".join(lines)
  file = f"{folder}/{hugging_face_vocabulary.TOKENIZER_FILE}"
  texts = f"[{exported.prefix!r} + x for x in texts]" if exported.prefix else "texts"
  lines += [
    "  import onnxruntime, tokenizers",
    f"  tokenizer = tokenizers.Tokenizer.from_file({file!r})",
    session,
    f"  batch = tokenizer.encode_batch({texts})",
    "  ids, masks = [x.ids for x in batch], [x.attention_mask for x in batch]",
    run,
    _OPENVINO,
    *(
      f"encode_{name} of vmsst puts {prompt!r} before each text instead"
      for name, prompt in exported.prompts.items()
      if prompt != exported.prefix
    ),
  ]
  lines += sentence_transformers_folder.limits(exported.pretokenized, tokenizer.eos is not None)
  return "\n".join(lines)


def _cutting_and_padding(tokenizer: tokenizer_file.ExportedTokenizer, max_length: int) -> bytes:
  """Returns the content of a tokenizer's file that also cuts and pads.

  Its ids do not depend on `Tokenizer.encode_special_tokens`, which applies to added tokens that are
  marked as special: tokens that a text may spell are not marked, and others are not added.
  """
  record = json.loads(tokenizer.content)
  kept = [] if tokenizer.splits_special_tokens else record["added_tokens"]
  record["added_tokens"] = [{**token, "special": False} for token in kept]
  made = tokenizers.Tokenizer.from_str(json.dumps(record))
  made.enable_truncation(max_length)
  made.enable_padding(pad_id=tokenizer.padding_id, pad_token=tokenizer.padding)
  return made.to_str(pretty=False).encode()
