"""Uploads encoders to the Hugging Face Hub.

`vmsst.load("owner/name")` and `SentenceTransformer("owner/name")` open the result.
"""

import dataclasses
import os
import pathlib
import re
import tempfile

from vmsst import errors, storage
from vmsst.encoder import loading
from vmsst.evaluation import results_files
from vmsst.formats import hub_models, model_card, sentence_transformers_folder

# Files of former uploads, which the new encoder may lack.
_REPLACED = re.compile(
  r"\d+_[A-Z]\w*/.*|vocabulary\.model|model.*\.safetensors(\.index\.json)?|pytorch_model.*"
  r"|special_tokens_map\.json|added_tokens\.json|adapter_config\.json"
)
_MAIN = "main"


@dataclasses.dataclass(frozen=True)
class Uploaded:
  """The result of an upload.

  Attributes:
    name: What `vmsst.load` opens: `owner/name`, followed by `@` and the branch unless it is main.
    url: Address of the commit.
    exported: The exported encoder; its folder no longer exists.
  """

  name: str
  url: str
  exported: sentence_transformers_folder.Exported


def push(
  path: str | os.PathLike[str],
  repository: str,
  *,
  public: bool = False,
  revision: str | None = None,
  license_id: str | None = None,
  results: str | os.PathLike[str] | None = None,
  pretokenized: bool = False,
) -> Uploaded:
  """Uploads an encoder and its model card in one commit; makes the repository if it is new.

  The export is written to a temporary folder first. The Hub keeps the files of an interrupted
  upload, so that another call does not send them again.

  Args:
    path: A path that `vmsst.load` opens.
    repository: `owner/name`.
    public: Whether everyone can see a new repository. An existing one must have this visibility.
    revision: Branch to commit to, made from the main branch if it is new; None: the main branch.
    license_id: License in the model card, such as "apache-2.0"; None: the card names none.
    results: Output folder of `vmsst eval`, whose averages the card shows; None: the card has none.
    pretokenized: As in `export_sentence_transformers`.

  Raises:
    InputError: there is no encoder, the export cannot express it, the results cannot be read or
      are of another encoder, there is no token, it has no permission, the repository exists and
      differs from `public`, or the Hub cannot be reached.
  """
  hub_models.check_repository(repository)
  _check_access(repository)
  where = repository if revision in (None, _MAIN) else f"{repository}@{revision}"
  with tempfile.TemporaryDirectory(prefix="vmsst-") as parent:
    folder = pathlib.Path(parent, "export")
    exported = sentence_transformers_folder.export_sentence_transformers(
      path, folder, pretokenized=pretokenized
    )
    card = model_card.text(exported, where, license_id=license_id, results=results)
    if results is not None:
      _check_evaluated(path, results)
    (folder / model_card.FILE).write_text(card, encoding="utf-8")
    missing = f"there is no repository {repository} that the token may write to; check the owner"
    with hub_models.explained(repository, "uploaded to", missing=missing, revision=revision):
      url = _commit(folder, repository, public, revision, f"Upload by vmsst: {where}")
  return Uploaded(where, url, exported)


def describe(uploaded: Uploaded) -> str:
  """Returns where the encoder is and how to open it."""
  exported, opens = uploaded.exported, f"vmsst.load({uploaded.name!r}) opens it"
  limits = sentence_transformers_folder.limits(exported.pretokenized, exported.has_eos)
  return "\n".join([uploaded.url, f"{opens}, and so does sentence-transformers", *limits])


def _check_access(repository: str) -> None:
  """Raises InputError if no upload is possible, before anything is exported."""
  import huggingface_hub
  from huggingface_hub import constants
  from huggingface_hub.utils import validate_repo_id

  hub = constants.ENDPOINT
  with hub_models.explained(repository, "uploaded to", missing=""):
    validate_repo_id(repository)
  if constants.HF_HUB_OFFLINE:
    raise errors.InputError(f"{repository} cannot be uploaded to {hub}: HF_HUB_OFFLINE is set")
  if huggingface_hub.get_token() is None:
    raise errors.InputError(
      f"{repository} cannot be uploaded to {hub} without a token; {hub_models.LOG_IN}"
    )


def _check_evaluated(path: str | os.PathLike[str], results: str | os.PathLike[str]) -> None:
  """Raises InputError if results of `vmsst eval` are not of the encoder with this path."""
  record = results_files.read_results(storage.path(results) / "results.json")
  evaluated = record["encoder"]
  if evaluated.get("digest") != loading.load(path, max_length=record.get("max_length")).digest:
    raise errors.InputError(
      f"{results} has results of {evaluated['name']}, which is not {path}, has changed since, or "
      f"was opened with other options: run `vmsst eval {path}` again"
    )


def _commit(
  folder: pathlib.Path, repository: str, public: bool, revision: str | None, message: str
) -> str:
  """Commits all files of a folder and returns the address of the commit."""
  from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

  api = HfApi(library_name="vmsst")
  address = api.create_repo(repository, private=not public, exist_ok=True)
  if api.model_info(repository).private == public:
    is_, fix = ("private", "omit") if public else ("public", "pass")
    raise errors.InputError(
      f"{address} exists and is {is_}; {fix} --public, or change its settings"
    )
  if revision not in (None, _MAIN):
    api.create_branch(repository, branch=revision, exist_ok=True)
  files = {
    path.relative_to(folder).as_posix(): path
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }
  stale = [
    name
    for name in api.list_repo_files(repository, revision=revision)
    if name not in files and _REPLACED.fullmatch(name)
  ]
  # `upload_folder` may make several commits.
  commit = api.create_commit(
    repository,
    [
      *(CommitOperationAdd(name, str(path)) for name, path in files.items()),
      *(CommitOperationDelete(name) for name in stale),
    ],
    commit_message=message,
    revision=revision,
  )
  return str(commit.commit_url)
