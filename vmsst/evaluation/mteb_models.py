"""Runs encoders on MTEB, for example for `vmsst eval --mteb` (`pip install 'vmsst[mteb]'`)."""

import functools
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.encoder import encoding
from vmsst.io import manifest

_ORGANIZATION = "vmsst"  # prefix for model names, in place of an owner on the Hugging Face Hub


class MtebModel:
  """Wraps an encoder as a model for `mteb.evaluate`.

  In retrieval tasks, the encoder's prompts, if any, are applied to queries and documents. In
  monolingual tasks, the language of the task is passed to encoders whose `encode` accepts the
  option `language`.

  Attributes:
    mteb_model_meta: Name and revision of the model; mteb stores results under the name and the
      revision. The revision is the start of the encoder's digest, followed by a hash of the
      encoder's `prompt` if one is set.
  """

  def __init__(self, encoder: Any, name: str):
    """Wraps an encoder.

    Args:
      encoder: An object with `encode(texts)`, as `vmsst.load` returns it.
      name: Name or path of the encoder; results are stored under the last component of the path.

    Raises:
      InputError: If mteb is not installed.
    """
    with errors.requires("mteb", "MTEB"):
      from mteb import similarity_functions
      from mteb.models.model_meta import ModelMeta, ScoringFunction
    self._encoder = encoder
    similarity_fn = ScoringFunction(getattr(encoder, "similarity_fn_name", "cosine"))
    # mteb calls `similarity` to compare all pairs of rows, [N, M], and `similarity_pairwise` to
    # compare corresponding rows, [N].
    self.similarity = functools.partial(
      similarity_functions.select_similarity, similarity_fn=similarity_fn
    )
    self.similarity_pairwise = functools.partial(
      similarity_functions.select_pairwise_similarity, similarity_fn=similarity_fn
    )
    identity = encoding.identity(encoder, name)
    revision = identity.get("digest", "unknown")[:16]
    if "prompt" in identity:
      revision += f"-{manifest.digest(identity['prompt'])[:16]}"
    self.mteb_model_meta = ModelMeta.create_empty(
      {
        "name": f"{_ORGANIZATION}/{pathlib.PurePosixPath(name).name or 'encoder'}",
        "revision": revision,
        "similarity_fn_name": similarity_fn,
      }
    )

  def encode(
    self,
    inputs: Iterable[dict[str, Any]],
    *,
    task_metadata: Any,
    hf_split: str,
    hf_subset: str,
    prompt_type: Any = None,
    **options: Any,
  ) -> np.ndarray:
    """Returns the vectors for the texts in mteb's batches, float32 [N, D]."""
    del hf_split
    texts = [text for batch in inputs for text in batch["text"]]
    kind = getattr(prompt_type, "value", None)
    methods = {"query": "encode_query", "document": "encode_document"}
    codes = task_metadata.hf_subsets_to_langscripts.get(hf_subset, ())
    return encoding.encode(
      self._encoder,
      texts,
      method=methods.get(str(kind), "encode"),
      batch_size=options.get("batch_size", 128),
      language=codes[0] if len(codes) == 1 else None,
      progress=False,
    )


def get_tasks(names: Sequence[str]) -> dict[str, list[Any]]:
  """Returns the named MTEB tasks, and all tasks in the named MTEB benchmarks.

  Raises:
    InputError: If mteb is not installed, or a name is unknown.
  """
  with errors.requires("mteb", "MTEB"):
    import mteb
  tasks = {}
  for name in names:
    try:
      tasks[name] = [mteb.get_task(name)]
    except KeyError:
      try:
        tasks[name] = [*mteb.get_benchmark(name).tasks]
      except KeyError as error:
        raise errors.InputError(f"MTEB has no task or benchmark {name}: {error.args[0]}") from None
  return tasks


def evaluate(
  encoder: Any, tasks: Sequence[Any], output: str | os.PathLike[str], *, name: str
) -> dict[str, float]:
  """Evaluates an encoder on MTEB tasks; returns the main score of each task, times 100.

  The mteb package downloads the data for the tasks.

  Args:
    encoder: An object with `encode(texts)`.
    tasks: The tasks.
    output: Folder for results in mteb's format. Tasks with results in this folder are not run
      again.
    name: Name or path of the encoder.

  Raises:
    InputError: If mteb is not installed.
  """
  model = MtebModel(encoder, name)
  import mteb
  from mteb.cache import ResultCache

  scores = {}
  for task in tasks:
    results = mteb.evaluate(model, task, cache=ResultCache(os.fspath(output)), co2_tracker=False)
    (result,) = results.task_results
    scores[task.metadata.name] = 100 * float(result.get_score())
  return scores
