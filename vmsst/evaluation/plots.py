"""Plots of sentences and their vectors, as figures of matplotlib (`pip install 'vmsst[report]'`).

    vmsst.plots.similarity(["How are you?", "Wie geht's?", "It rains."], encoder=encoder)
    vmsst.plots.languages(encoder.encode(texts), codes).savefig("languages.png")

With `%matplotlib inline`, a notebook shows the figure that a cell returns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.search import exact_search

_MOST_NUMBERS = 20  # Sentences of a side whose cosines are printed.
_LONGEST = 40  # Characters of a sentence in a label.


def similarity(
  sentences: Sequence[str], others: Sequence[str] | None = None, *, encoder: Any, **options: Any
) -> Any:
  """Returns a heat map of the cosines of sentences with others.

  Args:
    sentences: Sentences, in rows.
    others: Sentences, in columns; None: the same.
    encoder: An object with `encode(texts)`, as `vmsst.load` returns it.
    **options: Further options of `encode`, such as `prompt_name`.

  Raises:
    InputError: matplotlib is not installed.
  """
  others = sentences if others is None else others
  first_ND, second_MD = (
    exact_search.unit_rows(np.asarray(encoder.encode(list(side), **options)))
    for side in (sentences, others)
  )
  cosine_NM = first_ND @ second_MD.T
  rows, columns = ([_short(sentence) for sentence in side] for side in (sentences, others))
  # In inches: the cells, and room for the labels.
  width = 0.6 * len(columns) + 0.08 * max(map(len, rows)) + 1.5
  height = 0.4 * len(rows) + 0.06 * max(map(len, columns)) + 0.3
  drawn = _figure((width, height))
  axes = drawn.subplots()
  lowest = min(0.0, float(cosine_NM.min()))
  image = axes.imshow(cosine_NM, cmap="viridis", vmin=lowest, vmax=1, aspect="auto")
  drawn.colorbar(image, label="cosine")
  axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", parse_math=False)
  axes.set_yticks(range(len(rows)), rows, parse_math=False)
  if max(cosine_NM.shape) <= _MOST_NUMBERS:
    for (row, column), value in np.ndenumerate(cosine_NM):
      color = "black" if image.norm(value) > 0.6 else "white"
      axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
  return drawn


def languages(vectors: Any, labels: Sequence[str]) -> Any:
  """Returns a map of vectors in the plane of their two principal components.

  If the encoder is language-agnostic, translations are close together; otherwise, each language
  forms a region of its own.

  Args:
    vectors: Sentence vectors [N, D]; they are scaled to length 1.
    labels: The language of each, or another label.

  Raises:
    InputError: there are not as many labels as vectors, or matplotlib is not installed.
  """
  vector_ND = exact_search.unit_rows(np.asarray(vectors))
  if len(labels) != len(vector_ND):
    raise errors.InputError(
      f"{len(vector_ND)} vectors have {len(labels)} labels; give one for each"
    )
  centered_ND = vector_ND - vector_ND.mean(axis=0)
  _, _, component_DD = np.linalg.svd(centered_ND, full_matrices=False)
  point_N2 = centered_ND @ component_DD[:2].T
  drawn = _figure((6, 5))
  axes = drawn.subplots()
  names = list(dict.fromkeys(labels))
  for number, name in enumerate(names):
    rows = [i for i, label in enumerate(labels) if label == name]
    color = np.full(len(rows), number / max(1, len(names) - 1))
    axes.scatter(*point_N2[rows].T, s=12, c=color, vmin=0, vmax=1, cmap="turbo", label=name)
  axes.set(xlabel="first principal component", ylabel="second principal component")
  legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + len(names) // 20)
  for text in legend.get_texts():
    text.set_parse_math(False)
  return drawn


def _figure(size: tuple[float, float]) -> Any:
  with errors.requires("report", "a plot"):
    from matplotlib import figure
  return figure.Figure(figsize=size, layout="constrained")


def _short(sentence: str) -> str:
  return sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…"
