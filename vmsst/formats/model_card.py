"""Model cards: the README.md of an encoder on the Hugging Face Hub.

Facts about the run are from its `config.gin`, read without gin. Only names and numbers are taken:
the file may contain paths, addresses, passwords and tokens.
"""

import json
import os
import re
from collections.abc import Iterable

from vmsst import languages, storage
from vmsst.evaluation.report import markdown
from vmsst.formats import encoder_json
from vmsst.formats.sentence_transformers_folder import Exported
from vmsst.io import text_files

FILE = "README.md"
_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "vmsst"]
_CARD = """\
---
{front_matter}
---

# {repository}

A sentence encoder. It maps a sentence of at most {max_length} tokens to a vector of {dimension} \
dimensions.

## Use

With vmsst:

```python
import vmsst

encoder = vmsst.load({name})
vectors = encoder.encode(["How old are you?", "¿Cuántos años tienes?"], normalize=True)
```

With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({arguments})
vectors = model.encode(["How old are you?", "¿Cuántos años tienes?"], normalize_embeddings=True)
```
{note}
## Languages

{languages}

## Model

{model}

## Training

{training}

## Results

{results}
"""
_NOTE = """
For sentence-transformers, split texts into words first \
(`vmsst.data.word_splitting.split_words(texts, language)`).
"""
_CONFIG = "config.gin"
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")
# `MACRO = value`; further lines of the value are indented.
_MACRO = re.compile(r"^([A-Z_]+) = \\?\s*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_FUNCTION = r"\A@(?:[\w.]+/)*([\w.]+)\(\)\Z"
# What is taken of a macro's value: numbers, and names of functions, tasks, recipes and files. A
# file's name is the last part of its path, without what may follow it in an address.
_FACTS = {
  "MODEL": ("Model", _FUNCTION),
  "BATCH_SIZE": ("Pairs per batch", r"\A(\d+)\Z"),
  "MIXTURE_OR_TASK_NAME": ("Task", rf"{_FUNCTION}|\A'([\w.-]+)'\Z"),
  "OPUS_CONFIG": ("Recipe of the OPUS dataset", r"\A'([\w-]+)'\Z"),
  "PATTERNS": ("Files", r"['\"](?:[^'\"\s]*/)?([\w.*+-]+)['\"]"),
}


def text(
  exported: Exported,
  name: str,
  *,
  license_id: str | None = None,
  results: str | os.PathLike[str] | None = None,
) -> str:
  """Returns the model card of an export: facts about the encoder and its run, without paths.

  Args:
    exported: The export; the facts are of the run that it was made from.
    name: `owner/name`, followed by `@` and the branch unless it is main.
    license_id: License, such as "apache-2.0"; None: the card names none.
    results: Output folder of `vmsst eval`, or None.

  Raises:
    InputError: the results or the configuration cannot be read.
  """
  import huggingface_hub

  assets = encoder_json.load_encoder_assets(exported.folder)
  known = [languages.language(code) for code in assets.languages or ()]
  repository, _, revision = name.partition("@")
  front_matter = huggingface_hub.ModelCardData(
    language=sorted({language_row.iso639_1 or language_row.iso639_3 for language_row in known})
    or None,
    license=license_id,
    library_name="sentence-transformers",
    pipeline_tag="sentence-similarity",
    tags=_TAGS,
  )
  option = f", revision={json.dumps(revision)}" if revision else ""
  return _CARD.format(
    front_matter=front_matter.to_yaml(),
    repository=repository,
    max_length=exported.max_length,
    dimension=assets.network.latent_dim,
    name=json.dumps(name),
    arguments=f"{json.dumps(repository)}{option}",
    note=_NOTE if exported.pretokenized else "",
    languages=f"{', '.join(sorted(x.name for x in known))}." if known else "Not recorded.",
    model=_list(_model(assets)),
    training=_list(_facts(exported.source)) or "Not recorded.",
    results="Not evaluated (`vmsst push --results` adds the results of `vmsst eval`)."
    if results is None
    else markdown.averages(results),
  )


def _list(lines: Iterable[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)


def _model(assets: encoder_json.EncoderAssets) -> list[str]:
  network, config = assets.network, assets.network.config
  layers = vars(config).get("num_encoder_layers") or vars(config)["num_layers"]
  prompts = {"default": getattr(assets.vocabulary, "prefix", "")}
  prompts |= getattr(assets.vocabulary, "prompts", {})
  return [
    f"{type(config).__name__.removesuffix('Config')} encoder: {layers} layer{'s' * (layers != 1)}, "
    f"hidden size {config.width}, {config.vocab_size:,} tokens in the vocabulary",
    ", then ".join([f"Pooling: {network.pooling}", *map(str, network.layers.values())]),
    *(f"Prompt {json.dumps(name)}: {json.dumps(x)}" for name, x in prompts.items() if x),
  ]


def _facts(parameters: str) -> list[str]:
  """Returns facts about a run from the path of its `checkpoint_<step>`; none without its file."""
  path = storage.path(parameters)
  checkpoint = _CHECKPOINT.fullmatch(path.name)
  if checkpoint is None or not storage.is_file(path.parent / _CONFIG):
    return []
  values = dict(_MACRO.findall("\n".join(text_files.read_lines(str(path.parent / _CONFIG)))))
  facts = [f"Steps: {checkpoint[1]}"]
  for macro, (title, pattern) in _FACTS.items():
    taken = re.finditer(pattern, values.get(macro, "").strip())
    if names := sorted({f"`{x[x.lastindex]}`" for x in taken if x.lastindex}):
      facts.append(f"{title}: {', '.join(names)}")
  return facts
