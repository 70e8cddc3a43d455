"""Model cards: the README.md of an encoder on the Hugging Face Hub.

Facts about the run are from its `config.gin`, read without gin. Only single words and numbers are
taken: the file may contain paths, addresses, passwords and tokens.
"""

import json
import re
from collections.abc import Iterable

from vmsst import languages, storage
from vmsst.formats.encoder_json import SavedEncoder
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
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")
# A number, a word in quotes, or a function, of which scope and parentheses are left out.
_FACT = re.compile(
  r"^(MODEL|BATCH_SIZE|MIXTURE_OR_TASK_NAME|OPUS_CONFIG) = "
  r"(?:@(?:[\w.]+/)*)?'?([\w.-]+)'?(?:\(\))?$",
  re.MULTILINE,
)


def text(
  saved: SavedEncoder,
  name: str,
  *,
  license_id: str | None = None,
  results: str | None = None,
) -> str:
  """Returns the model card of an encoder: facts about it and its run, without paths.

  Args:
    saved: The encoder.
    name: `owner/name`, followed by `@` and the branch unless it is main.
    license_id: License, such as "apache-2.0"; default: the card names none.
    results: Averages of an evaluation, as a Markdown list.
  """
  import huggingface_hub

  assets = saved.assets
  network, config = assets.network, assets.network.config
  rows = [languages.language(code) for code in assets.languages or ()]
  repository, _, revision = name.partition("@")
  front_matter = huggingface_hub.ModelCardData(
    language=sorted({row.iso639_1 or row.iso639_3 for row in rows}) or None,
    license=license_id,
    library_name="sentence-transformers",
    pipeline_tag="sentence-similarity",
    tags=_TAGS,
  )
  layers = vars(config).get("num_encoder_layers") or vars(config)["num_layers"]
  prompts = {"default": getattr(assets.vocabulary, "prefix", "")}
  prompts |= getattr(assets.vocabulary, "prompts", {})
  training = []
  path = storage.path(saved.name)
  if (step := _CHECKPOINT.fullmatch(path.name)) and storage.is_file(path.parent / "config.gin"):
    config_text = "\n".join(text_files.read_lines(str(path.parent / "config.gin")))
    training = [f"Steps: {step[1]}", *(f"{x}: `{y}`" for x, y in _FACT.findall(config_text))]
  option = f", revision={json.dumps(revision)}" if revision else ""
  return _CARD.format(
    front_matter=front_matter.to_yaml(),
    repository=repository,
    max_length=assets.max_length,
    dimension=network.latent_dim,
    name=json.dumps(name),
    arguments=f"{json.dumps(repository)}{option}",
    note=_NOTE if getattr(assets.vocabulary, "pretokenize", False) else "",
    languages=f"{', '.join(sorted(row.name for row in rows))}." if rows else "Not recorded.",
    model=_list(
      [
        f"{type(config).__name__.removesuffix('Config')} encoder: {layers} "
        f"layer{'s' * (layers != 1)}, hidden size {config.width}, {config.vocab_size:,} tokens in "
        "the vocabulary",
        ", then ".join([f"Pooling: {network.pooling}", *map(str, network.layers.values())]),
        *(f"Prompt {json.dumps(key)}: {json.dumps(x)}" for key, x in prompts.items() if x),
      ]
    ),
    training=_list(training) or "Not recorded.",
    results=results or "Not evaluated (`vmsst push --results` adds the results of `vmsst eval`).",
  )


def _list(lines: Iterable[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)
