"""A local HTTP server with configurable failures."""

import dataclasses
import http.server
import re
import threading

import pytest


@dataclasses.dataclass
class Page:
  """Content of the server at a path, and how requests fail.

  `statuses` has the status of the first requests. 0, and all later requests, mean success. `stops`
  has the number of bytes after which the connection breaks, for the first requests. None, and all
  later requests, mean a complete answer.
  """

  content: bytes = b""
  ranges: bool = True
  raw: bytes | None = None  # sent instead of an HTTP response
  location: str = ""  # target of a redirect
  headers: dict = dataclasses.field(default_factory=lambda: {"ETag": '"1"'})
  statuses: list = dataclasses.field(default_factory=list)
  stops: list = dataclasses.field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def log_message(self, *args):
    pass

  def do_GET(self):
    path, asked = self.path.partition("?")[0], self.headers.get("Range")
    self.server.requests.append((self.path, asked))
    page = self.server.pages.get(path)
    if page is None:
      return self._answer(404, {}, b"no")
    if page.raw is not None:
      self.close_connection = True
      self.wfile.write(page.raw)
      return None
    if page.location:
      return self._answer(302, {"Location": page.location}, b"")
    if status := page.statuses.pop(0) if page.statuses else 0:
      return self._answer(status, page.headers, b"not now")
    content, status, headers = page.content, 200, dict(page.headers)
    if asked and page.ranges:
      start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
      if start >= len(content):
        return self._answer(416, {}, b"")
      headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
      content, status = content[start:], 206
    return self._answer(status, headers, content, page.stops.pop(0) if page.stops else None)

  def _answer(self, status, headers, content, stop=None):
    self.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(content[:stop])
    self.close_connection = self.close_connection or stop is not None


class Server(http.server.ThreadingHTTPServer):
  """Serves `pages` by path, and records the path and Range header of each request."""

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.pages = {}
    self.requests = []

  def handle_error(self, request, client_address):
    pass  # Some tests close the connection.

  def url(self, path):
    return f"http://127.0.0.1:{self.server_port}{path}"

  def put(self, path, content=b"", **options):
    """Adds a page; returns its URL."""
    self.pages[path] = Page(content, **options)
    return self.url(path)


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")
  with Server() as found:
    thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    thread.join()


@pytest.fixture
def fetcher():
  from vmsst.downloads import fetch

  return fetch.Fetcher(attempts=3, timeout=60.0, pause=0.001)
