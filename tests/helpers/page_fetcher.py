"""Downloads of pages in memory, without a network."""

import io
import urllib.parse
from collections.abc import Mapping
from typing import Any

import requests
import urllib3

from vmsst.downloads import evaluation_sets, fetch

_Fetcher = fetch.Fetcher  # tests replace it


class _Site(requests.adapters.BaseAdapter):
  """A web site: content by the path of an address, with ranges."""

  def __init__(self, pages: Mapping[str, bytes]):
    super().__init__()
    self._pages = pages

  def send(self, request: Any, **options: Any) -> requests.Response:
    """Returns the response to a request."""
    content = self._pages[urllib.parse.urlsplit(request.url).path]
    headers, status = {"ETag": '"1"'}, 200
    start = int(request.headers.get("Range", "bytes=0-")[6:-1])
    if "Range" in request.headers and request.headers.get("If-Range") in (None, '"1"'):
      status = 206 if start < len(content) else 416
      headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
      content = content[start:]
    headers["Content-Length"] = str(len(content))
    response = requests.Response()
    response.status_code, response.reason, response.url = status, "OK", request.url
    response.headers.update(headers)
    response.raw = urllib3.HTTPResponse(io.BytesIO(content), headers, status, preload_content=False)
    return response

  def close(self) -> None:
    """Does nothing."""


def fetcher_of(pages: Mapping[str, bytes]) -> fetch.Fetcher:
  """Returns a fetcher of pages, by path."""
  fetcher = _Fetcher(attempts=2, pause=0)
  fetcher._session.mount("https://", _Site(pages))
  return fetcher


def set_of(name: str, url: str, to: str, unpack: evaluation_sets.Unpack | None = None) -> Any:
  """Returns an evaluation set of one file."""
  item = evaluation_sets.Item(fetch.File(url), to, url.rpartition("/")[2])
  return evaluation_sets.EvaluationSet(name, "", "", "", name, (item,), unpack, None, "")
