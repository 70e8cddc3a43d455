"""Encoder methods named as in `SentenceTransformer`, and methods that score pairs.

The table in docs/how-to/sentence_transformers.md lists all of these methods.
"""

import functools
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer

from vmsst import errors
from vmsst.data import input_texts
from vmsst.data.input_texts import Texts
from vmsst.formats import tokenizers

if TYPE_CHECKING:
  from vmsst.search import margins

Language = str | Sequence[str] | None
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_LEVELS = 255
# Similarities that are negative distances, with the order of the norm: L2 or L1.
_NORMS = {"euclidean": 2, "manhattan": 1}


class Members:
  """Mixin for `Encoder`: methods that compare vectors, and sentence-transformers aliases."""

  max_length: int
  dimension: int
  path: str | None
  vocabulary: Any
  similarity_fn_name: str
  encode: Any
  save: Any

  def similarity(
    self,
    sources: Texts | np.ndarray | jax.Array,
    targets: Texts | np.ndarray | jax.Array | None = None,
    *,
    languages: tuple[Language, Language] = (None, None),
    **options: Any,
  ) -> Any:
    """Returns the similarity between every source and every target: float32 [N, M].

    The result is a NumPy array, or a torch tensor if the inputs are torch tensors.
    `similarity_fn_name` selects the similarity (default: the similarity named in a released
    encoder's files, otherwise cosine). Distances are negated, as in sentence-transformers, so that
    more similar vectors have larger values.

    Args:
      sources: Texts as in `encode`, vectors [N, D], a list of N vectors, or one vector [D].
      targets: Texts or vectors, in the same forms as the sources (default: the sources).
      languages: Languages of sources and targets, for encoders that require them.
      **options: Options for `encode`, such as `batch_size`.

    Raises:
      ValueError, TypeError, InputError: As in `encode`, or if vectors have an unexpected shape.
    """
    scores_NM = self._scores(sources, targets, languages, options)
    kinds = {type(_first(texts)).__module__ for texts in (sources, targets)}
    return tensor(scores_NM) if "torch" in kinds else scores_NM

  def score_pairs(
    self,
    sources: Texts | np.ndarray | jax.Array,
    targets: Texts | np.ndarray | jax.Array,
    *,
    languages: tuple[Language, Language] = (None, None),
    **options: Any,
  ) -> np.ndarray:
    """Returns the similarity between source i and target i: float32 [N]. See `similarity`.

    Raises:
      ValueError, TypeError, InputError: As in `encode`, or if the sources and targets differ in
        number or shape.
    """
    return self._scores(sources, targets, languages, options, pairs=True)

  def margin_scores(
    self,
    sources: Texts | np.ndarray | jax.Array,
    targets: Texts | np.ndarray | jax.Array,
    *,
    neighbors: int = 4,
    margin: "margins.Margin" = "ratio",
    languages: tuple[Language, Language] = (None, None),
    **options: Any,
  ) -> np.ndarray:
    """Returns the margin score for source i and target i, as in bitext mining: float64 [N].

    The margin compares the cosine of a pair with the cosines between each text and its nearest
    neighbors in the other language; see `vmsst.search.margins.margin_pairs`.

    Args:
      sources: Texts as in `encode`, or vectors [N, D].
      targets: Texts or vectors, one for each source.
      neighbors: Number of nearest neighbors.
      margin: "ratio", "distance" or "absolute".
      languages: Languages of sources and targets, for encoders that require them.
      **options: Options for `encode`, such as `batch_size`.

    Raises:
      ValueError, TypeError, InputError: As in `encode`, or if there are no pairs, the sources and
        targets differ in number, the vectors have an unexpected shape or are not finite,
        `neighbors` is not a positive integer, or the margin is unknown.
      RuntimeError: As in `encode`.
    """
    from vmsst.search import device_search, margins

    return margins.margin_scores(
      *self._sides(sources, targets, languages, options, pairs=True),
      neighbors=neighbors,
      margin=margin,
      search=device_search.search,
    )

  def _side(self, items: Any) -> np.ndarray | list[str]:
    """Returns sources or targets as an array of vectors or a list of texts."""
    first = _first(items)
    if isinstance(first, str) or not hasattr(first, "dtype"):
      return input_texts.as_list([items] if isinstance(items, str) else items)
    vectors = np.asarray(items if first is items else [np.asarray(vector) for vector in items])
    if not jnp.issubdtype(vectors.dtype, np.number):
      return input_texts.as_list(items)
    return np.atleast_2d(vectors)

  def _scores(
    self, sources: Any, targets: Any, languages: Any, options: Any, *, pairs: bool = False
  ) -> np.ndarray:
    """Returns the similarity for each pair, or between every source and every target."""
    from vmsst.search import exact_search

    vectors = self._sides(sources, targets, languages, options, pairs=pairs)
    if self.similarity_fn_name == "cosine":
      vectors = exact_search.unit_rows(vectors[0]), exact_search.unit_rows(vectors[1])
    source_ND, target_MD = (np.asarray(matrix, np.float32) for matrix in vectors)
    norm = _NORMS.get(self.similarity_fn_name)
    if norm and pairs:
      return -np.linalg.norm(source_ND - target_MD, ord=norm, axis=1)
    if norm:
      from scipy.spatial import distance  # imported here because the import takes half a second

      return -distance.cdist(source_ND, target_MD, "minkowski", p=norm).astype(np.float32)
    return np.einsum("nd,nd->n", source_ND, target_MD) if pairs else source_ND @ target_MD.T

  def _sides(
    self, sources: Any, targets: Any, languages: Any, options: Any, *, pairs: bool = False
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors for sources and targets. `pairs` requires one target for each source."""
    pools = [self._side(sources)]
    if pairs or targets is not None:
      pools.append(self._side(targets))
    if pairs and len(pools[0]) != len(pools[1]):
      raise ValueError(f"{len(pools[0]):,} sources, {len(pools[1]):,} targets; pass equally many")
    vectors = []
    for pool, language in zip(pools, input_texts.languages_by_side(languages), strict=False):
      if isinstance(pool, list):
        pool = np.asarray(self.encode(pool, language=language, **{**options, "precision": None}))
      vectors.append(pool)
    return vectors[0], vectors[-1]

  @property
  def max_seq_length(self) -> int:
    """Alias of `max_length`."""
    return self.max_length

  def save_pretrained(self, folder: Any) -> None:
    """Alias of `save`."""
    self.save(folder)

  def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
    """Returns `score_pairs` as a torch tensor."""
    return tensor(self.score_pairs(embeddings1, embeddings2))

  @property
  def device(self) -> Any:
    """Device of the tensors that `encode` returns: the CPU, as a torch device."""
    return tensor(np.empty(0)).device

  @property
  def model_card_data(self) -> Any:
    """A minimal model card. Vector caches read the model's name from it. It ignores metrics."""
    return types.SimpleNamespace(base_model=self.path, set_evaluation_metrics=lambda *_, **__: None)

  @functools.cached_property
  def tokenizer(self) -> Any:
    """The tokenizer that `save` writes. Its ids can differ from the ids in `vocabulary`."""
    with errors.requires("sentence-transformers", "the tokenizer"):
      import transformers
    exported = tokenizers.export(self.vocabulary)
    tokenizer = Tokenizer.from_buffer(exported.content)
    options = tokenizers.described_settings(exported, self.max_length)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)

  def tokenize(self, texts: Sequence[str]) -> Any:
    """Returns token ids from `tokenizer` and their attention mask, as torch tensors."""
    return self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")

  def get_embedding_dimension(self) -> int:
    """Alias of `dimension`."""
    return self.dimension

  get_sentence_embedding_dimension = get_embedding_dimension

  def eval(self) -> Any:
    """Returns this encoder; it is always in evaluation mode."""
    return self

  def evaluate(self, evaluator: Any, output_path: str | None = None) -> Any:
    """Runs a sentence-transformers evaluator and returns its metrics."""
    return evaluator(self, output_path)


def tensor(array: np.ndarray) -> Any:
  """Converts an array to a torch tensor."""
  with errors.requires("sentence-transformers", "a torch tensor"):
    import torch
  return torch.from_numpy(array)


def quantize(
  vectors_ND: Float[np.ndarray, "N D"],
  precision: Precision,
  ranges_2D: Float[np.ndarray, "2 D"] | None = None,
) -> np.ndarray:
  """Quantizes vectors to save space, like `quantize_embeddings` in sentence-transformers.

  This function rounds to the nearest level, whereas sentence-transformers truncates.

  Args:
    vectors_ND: Vectors [N, D].
    precision: "float32", which leaves the values unchanged; "int8" or "uint8", which store one byte
      per dimension; "binary" or "ubinary", which store one bit per dimension. A byte selects one of
      256 levels between the dimension's lowest and highest value. Each bit is 1 if the value is
      positive, and 8 bits are packed into each int8 or uint8.
    ranges_2D: The lowest and the highest value of each dimension, for int8 and uint8. Values
      outside the range are clipped. If `ranges_2D` is omitted, the ranges are computed from the
      vectors, which requires at least two vectors. Use the same ranges for all vectors that you
      compare.

  Raises:
    ValueError: If the precision is unknown, `ranges_2D` is omitted for a single vector, or
      `ranges_2D` does not have the shape [2, D].
  """
  vectors_ND = np.asarray(vectors_ND)
  errors.check_choice("precision", precision, get_args(Precision))
  if precision == "float32":
    return vectors_ND.astype(np.float32, copy=False)
  if precision in ("binary", "ubinary"):
    level_NX = np.packbits(vectors_ND > 0, axis=1)
  elif ranges_2D is None and not len(vectors_ND):
    return vectors_ND.astype(precision)
  else:
    if ranges_2D is None and len(vectors_ND) == 1:
      raise ValueError(
        f"{precision} requires the range of each dimension; quantize many vectors together, or "
        "pass ranges_2D"
      )
    ends = [vectors_ND.min(axis=0), vectors_ND.max(axis=0)] if ranges_2D is None else ranges_2D
    end_2D = np.asarray(ends, np.float32)
    if end_2D.shape != (2, vectors_ND.shape[1]):
      raise ValueError(f"ranges have the shape {end_2D.shape}, not (2, {vectors_ND.shape[1]})")
    width_D = end_2D[1] - end_2D[0]
    step_D = np.where(width_D > 0, width_D / _LEVELS, np.float32(1))
    level_NX = np.clip(np.rint((vectors_ND - end_2D[0]) / step_D), 0, _LEVELS)
  if precision in ("ubinary", "uint8"):
    return level_NX.astype(np.uint8)
  return (level_NX.astype(np.int16) - 128).astype(np.int8)


def _first(items: Any) -> Any:
  """Returns the first item of a list or tuple, and any other object unchanged."""
  return items[0] if isinstance(items, (list, tuple)) and items else items
