"""Model cards: the README.md of an encoder on the Hugging Face Hub."""

import json
import os
from collections.abc import Iterable, Sequence

from vmsst import languages
from vmsst.checkpoints import encoder_json
from vmsst.evaluation import report
from vmsst.exports import run_configuration
from vmsst.exports.sentence_transformers_folder import Exported
from vmsst.networks import sentence_encoder, t5

FILE = "README.md"
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "vmsst")
_EXAMPLES = '["How old are you?", "¿Cuántos años tienes?"]'


def text(
  exported: Exported,
  name: str,
  *,
  license_id: str | None = None,
  results: str | os.PathLike[str] | None = None,
) -> str:
  """Returns the model card of an export: facts about the encoder and its run, without paths.

  Args:
    exported: The export; the facts of `run_configuration` are of the run that it was made
      from.
    name: `owner/name`, followed by `@` and the branch unless it is main.
    license_id: License, such as "apache-2.0"; None: the card names none.
    results: Output folder of `vmsst eval`, or None.

  Raises:
    InputError: the results or the configuration cannot be read.
  """
  assets = encoder_json.load_encoder_assets(exported.folder)
  known = [languages.language(code) for code in assets.languages or ()]
  repository = name.partition("@")[0]
  parts = [
    _front_matter(known, license_id),
    f"# {repository}",
    f"A sentence encoder. It maps a sentence of at most {exported.max_length} tokens to a vector "
    f"of {assets.network.latent_dim} dimensions.",
    *_use(exported, name),
    "## Languages",
    f"{', '.join(sorted(each.name for each in known))}." if known else "Not recorded.",
    "## Model",
    _list(_model(assets)),
    "## Training",
    _list(run_configuration.facts(exported.source)) or "Not recorded.",
    "## Results",
    _results(results),
  ]
  return "\n\n".join(parts) + "\n"


def _list(lines: Iterable[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)


def _model(assets: encoder_json.EncoderAssets) -> list[str]:
  network, config = assets.network, assets.network.config
  layers = config.num_encoder_layers if isinstance(config, t5.T5Config) else config.num_layers
  prompts = {"default": getattr(assets.vocabulary, "prefix", "")}
  prompts |= getattr(assets.vocabulary, "prompts", {})
  return [
    f"{type(config).__name__.removesuffix('Config')} encoder: {layers} layers, hidden size "
    f"{sentence_encoder.hidden_dim(config)}, {config.vocab_size:,} tokens in the vocabulary",
    f"Pooling: {network.pooling}{', then a linear layer' * network.head}"
    f"{', then scaling to length 1' * network.normalize}",
    *(f"Prompt {json.dumps(name)}: {json.dumps(x)}" for name, x in prompts.items() if x),
  ]


def _front_matter(known: Iterable[languages.Language], license_id: str | None) -> str:
  codes = sorted({each.iso639_1 or each.iso639_3 for each in known})
  lines = [
    *_yaml_list("language", codes),
    *([] if license_id is None else [f"license: {json.dumps(license_id)}"]),
    "library_name: sentence-transformers",
    "pipeline_tag: sentence-similarity",
    *_yaml_list("tags", _TAGS),
  ]
  return "\n".join(["---", *lines, "---"])


def _yaml_list(key: str, values: Sequence[str]) -> list[str]:
  # Quoted: the code of Norwegian is YAML's "no".
  return [f"{key}:", *(f"- {json.dumps(value)}" for value in values)] if values else []


def _use(exported: Exported, name: str) -> list[str]:
  repository, _, revision = name.partition("@")
  option = f", revision={json.dumps(revision)}" if revision else ""
  ours = [
    "import vmsst",
    "",
    f"encoder = vmsst.load({json.dumps(name)})",
    f"vectors = encoder.encode({_EXAMPLES}, normalize=True)",
  ]
  theirs = [
    "from sentence_transformers import SentenceTransformer",
    "",
    f"model = SentenceTransformer({json.dumps(repository)}{option})",
    f"vectors = model.encode({_EXAMPLES}, normalize_embeddings=True)",
  ]
  parts = [
    "## Use",
    "With vmsst:",
    _fenced("\n".join(ours), "python"),
    "With sentence-transformers:",
    _fenced("\n".join(theirs), "python"),
  ]
  if exported.pretokenized:
    parts.append(
      "For sentence-transformers, split texts into words first "
      "(`vmsst.text.word_splitting.split_words(texts, language)`)."
    )
  return parts


def _results(results: str | os.PathLike[str] | None) -> str:
  if results is None:
    return "Not evaluated (`vmsst push --results` adds the results of `vmsst eval`)."
  return report.summary(results)


def _fenced(text: str, language: str) -> str:
  fence = "```"
  while fence in text:
    fence += "`"
  return f"{fence}{language}\n{text.strip()}\n{fence}"
