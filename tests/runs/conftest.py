"""Fixtures of tests with servers of object stores."""

import pytest
import store_servers


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request, tmp_path_factory):
  """URL of the bucket of a server, which all processes find, or a local folder."""
  if request.param == "local":
    yield str(tmp_path_factory.mktemp("bucket"))
    return
  store_servers.skip_without(request.param)
  with store_servers.running(request.param) as variables, pytest.MonkeyPatch.context() as patch:
    for name, value in variables.items():
      patch.setenv(name, value)
    yield f"{request.param}://bucket"
