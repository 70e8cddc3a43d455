"""The parts of a VMSST checkpoint next to its semantic encoder: language encoder and decoder.

The names of these parameters, the order of concatenated vectors and the rows of the language tables
are not published. A JSON file gives them, with defaults for all but the languages:

  {"languages": ["ar", "bg", null, "cs"], "decoder": "decoder", "logits": "lm_head/kernel"}

The keys are the attributes of `Names`. Layers of both stacks have T5X's names.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.checkpoints import hugging_face, tensors
from vmsst.checkpoints.importers import mt5, weight_tables
from vmsst.checkpoints.importers.weight_tables import Rule
from vmsst.files import input_files, storage

_HIDDEN, _SEMANTIC, _LANGUAGE = "hidden", "semantic", "language"
_LATENTS = (_LANGUAGE, _SEMANTIC)  # as in this library
_LAYERS = "num_decoder_layers"
# Parts of names of mT5's parameters that VMSST does not have, or that `Names` replaces.
_REPLACED = ("cross_attention", "encoder_decoder_attention", "logits_dense")
# Targets of kernels whose input is several vectors, and of language tables.
_INJECTION = "decoder/layers_{i}/injection"
_LOGITS = "logits"
_TABLES = ("encoder_language_embedder/embedding", "decoder/language_embedder/embedding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
  """Names of parameters in the checkpoint; `{i}` stands for a layer's number.

  Attributes:
    languages: Language code of each row of the language tables; None for rows to leave out.
    language_encoder: Start of the names of the language encoder.
    decoder: Start of the names of the decoder.
    log_variance: Head of the semantic latent's log-variance.
    language_mean: Head of the language latent's mean.
    language_log_variance: Head of the language latent's log-variance.
    encoder_language_table: Vectors that the language encoder adds to token vectors.
    decoder_language_table: Vectors that the decoder starts from.
    injection_norm: Scale of the norm before the sentence injection.
    injection: Kernel of the sentence injection, [D + 2 K, D].
    injection_order: Order of the vectors in the kernel's input.
    logits: Kernel of the vocabulary projection, [D + 2 K, V].
    logits_order: Order of the vectors in its input.
  """

  languages: tuple[str | None, ...]
  language_encoder: str = "language_encoder"
  decoder: str = "decoder"
  log_variance: str = "log_variance/kernel"
  language_mean: str = "language_mean/kernel"
  language_log_variance: str = "language_log_variance/kernel"
  encoder_language_table: str = "encoder_language_embedder/embedding"
  decoder_language_table: str = "decoder/language_embedder/embedding"
  injection_norm: str = "decoder/layers_{i}/pre_cross_attention_layer_norm/scale"
  injection: str = "decoder/layers_{i}/injection/kernel"
  injection_order: tuple[str, ...] = (_HIDDEN, _SEMANTIC, _LANGUAGE)
  logits: str = "decoder/logits_dense/kernel"
  logits_order: tuple[str, ...] = (_LANGUAGE, _SEMANTIC, _HIDDEN)


def read_names(path: str | os.PathLike[str]) -> Names:
  """Returns the names in a JSON file.

  Raises:
    InputError: the file cannot be read, a key is unknown, or a value is none that `Names` allows.
  """
  where = storage.path(path)
  record = hugging_face.read_object(where)
  known = [field.name for field in dataclasses.fields(Names)]
  if unknown := sorted(record.keys() - set(known)):
    raise errors.InputError(
      f"{where}: unknown keys {input_files.shown(unknown)}; known: {', '.join(known)}"
    )
  if "languages" not in record:
    raise errors.InputError(
      f"{where} has no key 'languages'; list the language code of each row of the language tables"
    )
  values: dict[str, Any] = {}
  for key, value in record.items():
    if key == "languages":
      values[key] = _languages(value, where)
    elif key.endswith("_order"):
      values[key] = _order(key, value, where)
    elif input_files.is_text(value) and value:
      values[key] = value
    else:
      raise errors.InputError(
        f"{where}: {key!r} is {input_files.shown(value)}; it must be the name of a parameter"
      )
  return Names(**values)


def _languages(value: Any, where: storage.Path) -> tuple[str | None, ...]:
  if not isinstance(value, list) or not all(x is None or isinstance(x, str) for x in value):
    raise errors.InputError(
      f"{where}: 'languages' must be a list with a language code or null for each row"
    )
  seen: dict[int, str] = {}
  for code in filter(None, value):
    try:
      index = languages_lib.language(code).index
    except errors.InputError as error:
      raise errors.InputError(f"{where}: 'languages': {error}") from None
    if index in seen:
      raise errors.InputError(
        f"{where}: 'languages' has {seen[index]!r} and {code!r}, which are the same language"
      )
    seen[index] = code
  if not seen:
    raise errors.InputError(f"{where}: 'languages' has no language code")
  return tuple(x or None for x in value)


def _order(key: str, value: Any, where: storage.Path) -> tuple[str, ...]:
  parts = (_HIDDEN, *_LATENTS)
  is_list = isinstance(value, list) and all(isinstance(x, str) for x in value)
  if not is_list or sorted(value) != sorted(parts):
    raise errors.InputError(
      f"{where}: {key!r} is {input_files.shown(value)}; it must be a list of "
      f"{', '.join(map(repr, parts))} in any order"
    )
  return tuple(value)


@dataclasses.dataclass(frozen=True)
class Decoder:
  """The decoder and the language encoder of a checkpoint.

  Attributes:
    names: The names of their parameters.
    rows: What each tensor becomes.
    num_layers: Layers of the decoder.
  """

  names: Names
  rows: tuple[weight_tables.Row, ...]
  num_layers: int

  @property
  def languages(self) -> list[str]:
    """The languages that it was trained on."""
    return [code for code in self.names.languages if code is not None]

  def parameters(self, stored: Mapping[str, tensors.StoredTensor]) -> dict[str, np.ndarray]:
    """Returns the parameters by name, float32.

    Raises:
      InputError: a tensor cannot be read, or has values that are not finite.
    """
    params = weight_tables.to_parameters(self.rows, stored)
    for name in _TABLES:
      params[name] = self._by_language(params[name])
    for layer in range(self.num_layers):
      start = _INJECTION.format(i=layer)
      order = self.names.injection_order
      hidden, latents = f"{start}/hidden/kernel", f"{start}/sentence/kernel"
      params[hidden], params[latents] = _split(params[hidden], order)
    hidden, latents = f"{_LOGITS}_hidden/kernel", f"{_LOGITS}_latent/kernel"
    params[hidden], params[latents] = _split(params[hidden], self.names.logits_order)
    return params

  def _by_language(self, table_RD: np.ndarray) -> np.ndarray:
    """Returns the rows of a language table at the indices of this library; others are zeros."""
    found = np.zeros((languages_lib.NUM_LANGUAGES, table_RD.shape[1]), np.float32)
    for row, code in enumerate(self.names.languages):
      if code is not None:
        found[languages_lib.language(code).index] = table_RD[row]
    return found


def _split(kernel: np.ndarray, order: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows of a kernel for hidden states, and those for the latents in our order."""
  parts = dict(zip(order, np.split(kernel, len(order)), strict=True))
  return parts[_HIDDEN], np.concatenate([parts[name] for name in _LATENTS])


def find(
  names: Names,
  stored: Mapping[str, tensors.StoredTensor],
  encoder: Iterable[weight_tables.Row],
  sizes: Mapping[str, int],
  where: str,
) -> Decoder:
  """Returns the decoder and the language encoder of a T5X checkpoint.

  Args:
    names: The names of their parameters.
    stored: All parameters of the checkpoint by name.
    encoder: Rows of the semantic encoder and its mean.
    sizes: Attributes of the encoder's config, which holds for the other stacks.
    where: The checkpoint, for messages.

  Raises:
    InputError: a parameter is missing, has another shape, or is not part of this kind of model.
  """
  start = f"{names.language_encoder}/"
  copied = [
    dataclasses.replace(
      row,
      source=start + row.source.removeprefix("encoder/"),
      targets=tuple(f"language_{target}" for target in row.targets),
    )
    for row in encoder
    if row.source.startswith("encoder/")
  ]
  layers_start = f"{names.decoder}/layers_"
  layers = {name.split("/", 2)[1] for name in stored if name.startswith(layers_start)}
  depth = len(layers)
  rows = [
    *copied,
    *_layers(names, sizes, depth),
    *weight_tables.expand(
      _table(names),
      {
        "vocab_size": sizes["vocab_size"],
        "emb_dim": sizes["emb_dim"],
        "latent_dim": sizes["emb_dim"],  # as in the paper; so the parts of a kernel have one size
        "concatenated_dim": 3 * sizes["emb_dim"],
        "num_rows": len(names.languages),
        _LAYERS: depth,
      },
    ),
  ]
  parts = {row.source for row in rows}
  starts = (start, f"{names.decoder}/")
  relevant = {x: y for x, y in stored.items() if x in parts or x.startswith(starts)}
  try:
    weight_tables.check(rows, relevant, where)
  except errors.InputError as error:
    others = stored.keys() - {row.source for row in encoder} - parts
    raise errors.InputError(
      f"{error}; correct the names in the file of --decoder. Other parameters there: "
      f"{tensors.some(others) if others else 'none'}"
    ) from None
  return Decoder(names, tuple(rows), depth)


def _layers(names: Names, sizes: Mapping[str, int], depth: int) -> list[weight_tables.Row]:
  """Returns the rows of the decoder that mT5's decoder has too, except for cross-attention."""
  every = mt5.rows({**sizes, _LAYERS: depth}, t5x_names=True)
  return [
    dataclasses.replace(row, source=names.decoder + row.source.removeprefix("decoder"))
    for row in every
    if row.source.startswith("decoder/") and not any(part in row.source for part in _REPLACED)
  ]


def _table(names: Names) -> tuple[Rule, ...]:
  """Returns the rules of the parameters that mT5 does not have."""
  heads = ("log_variance", "language_mean", "language_log_variance")
  tables = (names.encoder_language_table, names.decoder_language_table)
  norm, injection = "decoder/layers_{i}/pre_injection_layer_norm/scale", f"{_INJECTION}/hidden"
  return (
    *(Rule(getattr(names, head), f"{head}/kernel", ("emb_dim", "latent_dim")) for head in heads),
    *(
      Rule(source, target, ("num_rows", "emb_dim"))
      for source, target in zip(tables, _TABLES, strict=True)
    ),
    Rule(names.injection_norm, norm, ("emb_dim",), layers=_LAYERS),
    Rule(names.injection, f"{injection}/kernel", ("concatenated_dim", "emb_dim"), layers=_LAYERS),
    Rule(names.logits, f"{_LOGITS}_hidden/kernel", ("concatenated_dim", "vocab_size")),
  )
