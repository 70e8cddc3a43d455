"""Members by which an encoder takes the place of a `SentenceTransformer`.

docs/how-to/sentence_transformers.md has a table of all.
"""

import functools
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from vmsst import errors
from vmsst.formats import tokenizers


class Members:
  """Other names of what an encoder has."""

  max_length: int
  dimension: int
  path: str | None
  vocabulary: Any
  save: Any
  score_pairs: Any

  @property
  def max_seq_length(self) -> int:
    """The attribute `max_length`."""
    return self.max_length

  def save_pretrained(self, folder: Any) -> None:
    """Calls `save`."""
    self.save(folder)

  def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
    """Returns `score_pairs` as a tensor of torch."""
    return tensor(self.score_pairs(embeddings1, embeddings2))

  @property
  def device(self) -> Any:
    """Device of the tensors that `encode` returns: torch's CPU."""
    return tensor(np.empty(0)).device

  @property
  def model_card_data(self) -> Any:
    """Name of the model for caches of vectors; ignores metrics for a model card."""
    return types.SimpleNamespace(base_model=self.path, set_evaluation_metrics=lambda *_, **__: None)

  @functools.cached_property
  def tokenizer(self) -> Any:
    """Tokenizer of the folder that `save` writes; its ids can differ from `vocabulary`'s ids."""
    with errors.requires("sentence-transformers", "the tokenizer"):
      import transformers
    exported = tokenizers.export(self.vocabulary)
    tokenizer = Tokenizer.from_buffer(exported.content)
    options = tokenizers.described_settings(exported, self.max_length)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)

  def tokenize(self, texts: Sequence[str]) -> Any:
    """Returns the `tokenizer`'s ids of texts and their mask, tensors of torch."""
    return self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")

  def get_embedding_dimension(self) -> int:
    """Returns `dimension`."""
    return self.dimension

  get_sentence_embedding_dimension = get_embedding_dimension

  def eval(self) -> Any:
    """Returns this encoder, which is always in evaluation mode."""
    return self

  def evaluate(self, evaluator: Any, output_path: str | None = None) -> Any:
    """Returns the metrics of an evaluator of sentence-transformers."""
    return evaluator(self, output_path)


def tensor(array: np.ndarray) -> Any:
  """Returns an array as a tensor of torch."""
  with errors.requires("sentence-transformers", "a tensor of torch"):
    import torch
  return torch.from_numpy(array)
