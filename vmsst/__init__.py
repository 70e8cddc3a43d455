"""Multilingual sentence encoders in JAX: VMSST, EMS, their baselines and their evaluation.

The name of an array ends with one letter per axis (`hidden_BTD`). The whole library uses the same
letters: `B` batch (pairs or sentences), `T` and `U` tokens, `D` hidden state width, `E` token
vector width or input width of a projection, `S` semantic latent, `G` language latent, `Z` both
latents (decoder input), `V` vocabulary, `N` and `M` sentences in two pools, `P` pairs or a
subset of sentences, `F` distinct sentences, `C` a block of sentences or tokens, `Q` queries, `K`
neighbors or negatives, `L` languages or labels, `R` rows or the two texts of a pair, `H` attention
heads, and `A`, `I` and `O` other inputs and outputs. A module that uses `W`, `X` or `Y`, or gives a
different meaning to one of the letters above, defines the letter in its docstring.

Importing this package is fast, because each public name is imported only when it is first used.
Only `t5x` commands and `vmsst data build` import TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # For editors and type checkers. A test compares these names with _PUBLIC.
  from vmsst.data.retrieval_sets import RetrievalSet
  from vmsst.data.sample import load_sample
  from vmsst.data.training_sets import TrainingSet
  from vmsst.encoder.compatibility import quantize
  from vmsst.encoder.encoder import Encoder
  from vmsst.encoder.loading import load, load_translator
  from vmsst.encoder.static import distill_static
  from vmsst.encoder.translation import Translator
  from vmsst.errors import InputError
  from vmsst.evaluation.benchmarks import get_benchmarks
  from vmsst.evaluation.metrics.retrieval import translation_accuracy
  from vmsst.evaluation.suite import evaluate
  from vmsst.finetuning import finetune
  from vmsst.mining.document_alignment import Alignment, align
  from vmsst.mining.hard_negative_mining import hard_negatives
  from vmsst.mining.text_search import Searcher
  from vmsst.paths import gin_dir
  from vmsst.search.exact_search import top_k, unit_rows
  from vmsst.search.faiss_index import build_index, open_index
  from vmsst.search.margins import margin_pairs
  from vmsst.search.vector_store import open_text, open_vectors

__version__ = "0.1.0"

# The names in the public API, and the modules that define them.
_PUBLIC = {
  "Alignment": "vmsst.mining.document_alignment",
  "Encoder": "vmsst.encoder.encoder",
  "InputError": "vmsst.errors",
  "RetrievalSet": "vmsst.data.retrieval_sets",
  "Searcher": "vmsst.mining.text_search",
  "TrainingSet": "vmsst.data.training_sets",
  "Translator": "vmsst.encoder.translation",
  "align": "vmsst.mining.document_alignment",
  "build_index": "vmsst.search.faiss_index",
  "distill_static": "vmsst.encoder.static",
  "evaluate": "vmsst.evaluation.suite",
  "finetune": "vmsst.finetuning",
  "get_benchmarks": "vmsst.evaluation.benchmarks",
  "gin_dir": "vmsst.paths",
  "hard_negatives": "vmsst.mining.hard_negative_mining",
  "load": "vmsst.encoder.loading",
  "load_sample": "vmsst.data.sample",
  "load_translator": "vmsst.encoder.loading",
  "margin_pairs": "vmsst.search.margins",
  "open_index": "vmsst.search.faiss_index",
  "open_text": "vmsst.search.vector_store",
  "open_vectors": "vmsst.search.vector_store",
  "quantize": "vmsst.encoder.compatibility",
  "translation_accuracy": "vmsst.evaluation.metrics.retrieval",
  "top_k": "vmsst.search.exact_search",
  "unit_rows": "vmsst.search.exact_search",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
  if name == "plots":
    return importlib.import_module("vmsst.evaluation.plots")
  if name not in _PUBLIC:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_PUBLIC})
