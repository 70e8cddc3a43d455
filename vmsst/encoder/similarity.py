"""Similarities and margin scores of texts, or of vectors, as methods of an encoder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import distance

from vmsst.data import input_texts
from vmsst.data.input_texts import Texts
from vmsst.encoder import compatibility

if TYPE_CHECKING:
  from vmsst.search import margins

Language = str | Sequence[str] | None
# Similarities that are negative distances, by the norm of the difference.
_NORMS = {"euclidean": 2, "manhattan": 1}


class Scores:
  """Compares the vectors that `encode` of the same class returns."""

  similarity_fn_name: str
  dimension: int
  encode: Any

  def similarity(
    self,
    sources: Texts | np.ndarray | jax.Array,
    targets: Texts | np.ndarray | jax.Array | None = None,
    *,
    languages: tuple[Language, Language] = (None, None),
    **options: Any,
  ) -> Any:
    """Returns the similarity of every source with every target: float32 [N, M].

    Returns a NumPy array, or a tensor if vectors are tensors of torch. `similarity_fn_name` selects
    the similarity: the cosine, unless the files of a released encoder or you set another. Distances
    are negative, as in sentence-transformers, so that larger values are more similar.

    Args:
      sources: Texts as in `encode`, vectors [N, D], a list of N vectors, or one vector [D].
      targets: Texts or vectors likewise; None: the sources.
      languages: Languages of sources and targets, for encoders that require them.
      **options: Options of `encode`, such as `batch_size`.

    Raises:
      ValueError, TypeError, InputError: as `encode`, or vectors have another shape.
    """
    scores_NM = self._scores(sources, targets, languages, options)
    kinds = {type(_first(side)).__module__ for side in (sources, targets)}
    return compatibility.tensor(scores_NM) if "torch" in kinds else scores_NM

  def score_pairs(
    self,
    sources: Texts | np.ndarray | jax.Array,
    targets: Texts | np.ndarray | jax.Array,
    *,
    languages: tuple[Language, Language] = (None, None),
    **options: Any,
  ) -> np.ndarray:
    """Returns the similarity of source i with target i: float32 [N]. See `similarity`.

    Raises:
      ValueError, TypeError, InputError: as `encode`, or the sides differ in number or shape.
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
    """Returns the margin score of source i with target i, as in bitext mining: float64 [N].

    It compares the cosine of a pair with the cosines of both texts' nearest neighbors among the
    given texts of the other side; see `vmsst.search.margins.margin_pairs`.

    Args:
      sources: Texts as in `encode`, or vectors [N, D].
      targets: As many texts or vectors.
      neighbors: Number of nearest neighbors.
      margin: "ratio", "distance" or "absolute".
      languages: Languages of sources and targets, for encoders that require them.
      **options: Options of `encode`, such as `batch_size`.

    Raises:
      ValueError, TypeError, InputError: as `encode`, there are no pairs, the sides differ in
        number, vectors have another shape or are not finite, `neighbors` is not an integer of 1 or
        more, or the margin is unknown.
      RuntimeError: as `encode`.
    """
    from vmsst.search import device_search, margins

    return margins.margin_scores(
      *self._sides(sources, targets, languages, options, pairs=True),
      neighbors=neighbors,
      margin=margin,
      search=device_search.search,
    )

  def _side(self, given: Any) -> np.ndarray | list[str]:
    """Returns the vectors or texts of one side."""
    first = _first(given)
    if isinstance(first, str) or not hasattr(first, "dtype"):
      return input_texts.as_list([given] if isinstance(given, str) else given)
    vectors = np.asarray(given if first is given else [np.asarray(vector) for vector in given])
    if not jnp.issubdtype(vectors.dtype, np.number):
      return input_texts.as_list(given)
    return np.atleast_2d(vectors)

  def _scores(
    self, sources: Any, targets: Any, languages: Any, options: Any, *, pairs: bool = False
  ) -> np.ndarray:
    """Returns the similarities of both sides, of pairs or of all with all."""
    from vmsst.search import exact_search

    vectors = self._sides(sources, targets, languages, options, pairs=pairs)
    if self.similarity_fn_name == "cosine":
      vectors = exact_search.unit_rows(vectors[0]), exact_search.unit_rows(vectors[1])
    source_ND, target_MD = (np.asarray(side, np.float32) for side in vectors)
    norm = _NORMS.get(self.similarity_fn_name)
    if norm and pairs:
      return -np.linalg.norm(source_ND - target_MD, ord=norm, axis=1)
    if norm:
      return -distance.cdist(source_ND, target_MD, "minkowski", p=norm).astype(np.float32)
    return np.einsum("nd,nd->n", source_ND, target_MD) if pairs else source_ND @ target_MD.T

  def _sides(
    self, sources: Any, targets: Any, languages: Any, options: Any, *, pairs: bool = False
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of both sides, which must be equally many if they are pairs."""
    sides = [self._side(sources)]
    if pairs or targets is not None:
      sides.append(self._side(targets))
    if pairs and len(sides[0]) != len(sides[1]):
      raise ValueError(f"{len(sides[0]):,} sources and {len(sides[1]):,} targets are not pairs")
    vectors = []
    for side, language in zip(sides, input_texts.languages_by_side(languages), strict=False):
      if isinstance(side, list):
        side = np.asarray(self.encode(side, language=language, **{**options, "precision": None}))
      vectors.append(side)
    return vectors[0], vectors[-1]


def _first(given: Any) -> Any:
  """Returns the first item of a list or tuple, or other objects themselves."""
  return given[0] if isinstance(given, (list, tuple)) and given else given
