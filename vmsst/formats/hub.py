"""Downloads encoders from the Hugging Face Hub, uploads encoders, and writes model cards.

The package huggingface_hub transfers the files. Its cache, tokens and offline mode are configured
as usual (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT). Code in a repository is never run.
"""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator

from vmsst import errors
from vmsst.formats import tokenizers
from vmsst.formats.encoder_json import SavedEncoder

# Reject `..`, because a revision becomes part of a cache path. Git revisions never contain `..`.
_NAME = re.compile(r"(?!.*\.\.)(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_CHECKPOINT = re.compile(r"checkpoint_\d+")
_LOG_IN = "log in (`hf auth login`) or set HF_TOKEN"
# Files to download besides the encoder's weights. The last pattern matches PyTorch weights of the
# layers after the pooling. These layers may lack safetensors weights even if the encoder has them.
_FILES = ("*.json", "*.model", "*.jinja", "[0-9]*_*/pytorch_model.bin")
# Weights of the encoder, in order of preference.
_WEIGHTS = ("*.safetensors", "*pytorch_model*.bin")
# Copies of the model for other runtimes. These files are not downloaded.
_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "gguf/*")

# Files that `upload` deletes from the repository if the new encoder does not contain them.
_REPLACED = re.compile(
  r"\d+_[A-Z]\w*/.*|vocabulary\.model|model.*\.safetensors(\.index\.json)?|pytorch_model.*"
  r"|special_tokens_map\.json|added_tokens\.json|adapter_config\.json"
)


def is_name(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path has the form `owner/name` and does not exist locally."""
  text = os.fspath(path)
  is_checkpoint = _CHECKPOINT.fullmatch(text.rsplit("/", 1)[-1])
  return bool(_NAME.fullmatch(text)) and not is_checkpoint and not os.path.lexists(text)


def find(name: str) -> tuple[str, pathlib.Path]:
  """Downloads a model unless it is cached; returns `owner/name@commit` and the model folder.

  Args:
    name: `owner/name`, or `owner/name@revision` with a branch, tag or commit.

  Raises:
    InputError: If the model does not exist or cannot be downloaded.
  """
  import huggingface_hub

  repository, _, revision = name.partition("@")
  with _hub_errors(f"the folder {name} does not exist, and {name} cannot be downloaded from"):
    for weights in _WEIGHTS:
      snapshot = huggingface_hub.snapshot_download(
        repository,
        revision=revision or None,
        allow_patterns=[*_FILES, weights],
        ignore_patterns=list(_OTHERS),
      )
      folder = pathlib.Path(snapshot)
      if any(folder.rglob(weights)):
        return f"{repository}@{folder.name}", folder
  raise errors.InputError(f"{repository} has no weights in safetensors or PyTorch format")


def check_upload(repository: str) -> None:
  """Raises InputError unless `repository` is `owner/name` and a Hub token is available."""
  import huggingface_hub

  matched = _NAME.fullmatch(repository)
  if not matched or matched["revision"]:
    raise errors.InputError(f"{repository!r} is not a repository name; pass owner/name")
  if huggingface_hub.get_token() is None:
    raise errors.InputError(f"{repository} cannot be uploaded without a token; {_LOG_IN}")


def upload(
  folder: pathlib.Path, repository: str, *, public: bool = False, revision: str | None = None
) -> str:
  """Uploads all files in a folder in one commit, and returns the URL of the commit.

  The Hub keeps files from an interrupted upload, so the next call does not send them again.

  Args:
    folder: Folder with an encoder that sentence-transformers can open.
    repository: `owner/name`. Created if it does not exist.
    public: Whether a new repository is public. An existing repository must have this visibility.
    revision: Branch to commit to (default: the main branch). A new branch starts from main.

  Raises:
    InputError: If the token lacks permission, the visibility of an existing repository differs from
      `public`, or the Hub cannot be reached.
  """
  from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

  with _hub_errors(f"{repository} cannot be uploaded to"):
    api = HfApi(library_name="vmsst")
    address = api.create_repo(repository, private=not public, exist_ok=True)
    if api.model_info(repository).private == public:
      is_, fix = ("private", "omit") if public else ("public", "pass")
      raise errors.InputError(
        f"{address} exists and is {is_}; {fix} --public, or change its settings"
      )
    if revision is not None:
      api.create_branch(repository, branch=revision, exist_ok=True)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): str(path) for path in paths}
    stale = filter(_REPLACED.fullmatch, api.list_repo_files(repository, revision=revision))
    # Do not call `upload_folder`, because it may create several commits.
    commit = api.create_commit(
      repository,
      [
        *(CommitOperationAdd(name, path) for name, path in files.items()),
        *(CommitOperationDelete(name) for name in stale if name not in files),
      ],
      commit_message="Upload by vmsst",
      revision=revision,
    )
  return str(commit.commit_url)


@contextlib.contextmanager
def _hub_errors(problem: str) -> Iterator[None]:
  """Converts exceptions from huggingface_hub and its dependencies to InputError.

  Args:
    problem: Start of the message. The Hub URL and the reason are appended.
  """
  from huggingface_hub import constants

  try:
    yield
  except errors.InputError:
    raise
  except Exception as error:  # The exception classes differ between versions of the packages.
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
      error = error.__cause__  # Report the cause, because the RuntimeError itself says little.
    reason = " ".join(str(error).split()) or type(error).__name__
    raise errors.InputError(
      f"{problem} {constants.ENDPOINT}: {reason}; for a private or gated model, {_LOG_IN}"
    ) from None


# --------------------------------------------------------------------------------------------
# Model cards

CARD_FILE = "README.md"
_TEMPLATE = pathlib.Path(__file__).with_name("model_card.md")
_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "vmsst"]


def card(
  saved: SavedEncoder, name: str, *, license_id: str | None = None, results: str | None = None
) -> str:
  """Returns the model card for an encoder. The card contains no local paths.

  Args:
    saved: The encoder.
    name: `owner/name`, or `owner/name@branch` for a branch other than main.
    license_id: License, such as "apache-2.0" (default: no license in the card).
    results: Average evaluation scores, as a Markdown list.
  """
  import huggingface_hub

  from vmsst import languages

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
  layers = vars(config).get("num_encoder_layers") or vars(config).get("num_layers", 0)
  prompts = {"default": getattr(assets.vocabulary, "prefix", "")}
  prompts |= getattr(assets.vocabulary, "prompts", {})
  facts = [
    f"{type(config).__name__.removesuffix('Config')} encoder: {layers} layer{'s' * (layers != 1)}, "
    f"hidden size {config.width}, {config.vocab_size:,} tokens in the vocabulary",
    ", then ".join([f"Pooling: {network.pooling}", *map(str, network.layers.values())]),
    *(f"Prompt {json.dumps(key)}: {json.dumps(x)}" for key, x in prompts.items() if x),
  ]
  return _TEMPLATE.read_text(encoding="utf-8").format(
    front_matter=front_matter.to_yaml(),
    repository=repository,
    max_length=assets.max_length,
    dimension=network.latent_dim,
    name=json.dumps(name),
    arguments=json.dumps(repository) + (f", revision={json.dumps(revision)}" if revision else ""),
    note="".join(f"\n{line}.\n" for line in tokenizers.limits(assets)),
    languages=f"{', '.join(sorted(row.name for row in rows))}." if rows else "Not recorded.",
    model="\n".join(f"- {fact}" for fact in facts),
    results=results or "Not evaluated (`vmsst push --results` adds the results of `vmsst eval`).",
  )
