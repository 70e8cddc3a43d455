"""Explains failed requests to the Hugging Face Hub in one line."""

import contextlib
from collections.abc import Iterator

from vmsst import errors

LOG_IN = "log in (`hf auth login`) or set HF_TOKEN"


@contextlib.contextmanager
def explained(
  repository: str, action: str, *, missing: str, revision: str | None = None
) -> Iterator[None]:
  """Raises InputError instead of the exceptions of huggingface_hub and of the packages it uses.

  Args:
    repository: `owner/name`.
    action: What happens to it, such as "downloaded from"; the address of the Hub follows.
    missing: The message if there is no such repository, or the token may not see it.
    revision: The requested branch, tag or commit.
  """
  from huggingface_hub import constants
  from huggingface_hub import errors as hub_errors

  hub = constants.ENDPOINT
  try:
    yield
  except errors.InputError:
    raise
  except hub_errors.GatedRepoError:
    raise errors.InputError(
      f"{repository} is gated: accept its conditions at {hub}/{repository}, then {LOG_IN}"
    ) from None
  except hub_errors.RepositoryNotFoundError:
    raise errors.InputError(missing) from None
  except hub_errors.RevisionNotFoundError:
    raise errors.InputError(
      f"{repository} at {hub} has no branch, tag or commit {revision}"
    ) from None
  except Exception as error:  # of several packages, whose classes differ between versions
    raise errors.InputError(f"{repository} cannot be {action} {hub}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
  """Returns the reason of a failure and what to do."""
  if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
    error = error.__cause__  # of one file of many
  status = getattr(getattr(error, "response", None), "status_code", None)
  if status == 401:
    return f"the token is not valid; {LOG_IN}"
  if status == 403:
    return "the token has no permission; check the owner, and that the token allows this"
  if status is None and isinstance(error, ValueError):  # such as an invalid name or model card
    return " ".join(str(error).split())
  reason = str(error).strip().partition("\n")[0] or type(error).__name__
  return f"{reason}; rerun to resume"
