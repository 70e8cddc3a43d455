"""Downloads of pages in memory, without a network."""

import http.client
import io
import types
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from vmsst.downloads import evaluation_sets, fetch

_Fetcher = fetch.Fetcher  # tests replace it


class _Site(urllib.request.BaseHandler):
  """A web site: content by the path of an address, with ranges."""

  handler_order = 1  # before that of urllib

  def __init__(self, pages: Mapping[str, bytes]):
    self._pages = pages

  def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
    """Returns the response to a request."""
    content = self._pages[urllib.parse.urlsplit(request.full_url).path]
    head, start = "HTTP/1.1 200 OK", int(request.get_header("Range", "bytes=0-")[6:-1])
    if start:
      head = "HTTP/1.1 206 OK" if start < len(content) else "HTTP/1.1 416 No"
      head += f"\r\nContent-Range: bytes {start}-{len(content) - 1}/{len(content)}"
      content = content[start:]
    head += f'\r\nETag: "1"\r\nContent-Length: {len(content)}\r\n\r\n'
    stream = io.BytesIO(head.encode() + content)
    response = http.client.HTTPResponse(types.SimpleNamespace(makefile=lambda mode: stream))
    response.begin()
    response.msg = response.reason
    return response


def fetcher_of(pages: Mapping[str, bytes]) -> fetch.Fetcher:
  """Returns a fetcher of pages, by path."""
  fetcher = _Fetcher(attempts=2, pause=0)
  fetcher._opener.add_handler(_Site(pages))
  return fetcher


def set_of(name: str, url: str, to: str, unpack: evaluation_sets.Unpack | None = None) -> Any:
  """Returns an evaluation set of one file."""
  item = evaluation_sets.Item(fetch.File(url), to, url.rpartition("/")[2])
  return evaluation_sets.EvaluationSet(name, "", "", "", name, (item,), unpack, None, "")
