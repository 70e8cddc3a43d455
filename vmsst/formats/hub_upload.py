"""Uploads folders to the Hugging Face Hub."""

import pathlib
import re

from vmsst import errors
from vmsst.formats import hub

# Files of former uploads, which the new encoder may lack.
_REPLACED = re.compile(
  r"\d+_[A-Z]\w*/.*|vocabulary\.model|model.*\.safetensors(\.index\.json)?|pytorch_model.*"
  r"|special_tokens_map\.json|added_tokens\.json|adapter_config\.json"
)


def check(repository: str) -> None:
  """Raises InputError unless this is the name of a repository and there is a token."""
  import huggingface_hub

  hub.check_repository(repository)
  if huggingface_hub.get_token() is None:
    raise errors.InputError(f"{repository} cannot be uploaded without a token; {hub.LOG_IN}")


def upload(
  folder: pathlib.Path, repository: str, *, public: bool = False, revision: str | None = None
) -> str:
  """Uploads all files of a folder in one commit, whose address it returns.

  The Hub keeps the files of an interrupted upload, so that another call does not send them again.

  Args:
    folder: An encoder that sentence-transformers opens.
    repository: `owner/name`, made if it is new.
    public: Whether everyone can see a new repository. An existing one must have this visibility.
    revision: Branch to commit to, made from the main branch if it is new; default: the main branch.

  Raises:
    InputError: the token has no permission, the repository exists and differs from `public`, or the
      Hub cannot be reached.
  """
  from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

  with hub.explained(f"{repository} cannot be uploaded to"):
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
    # `upload_folder` may make several commits.
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
