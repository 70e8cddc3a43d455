"""A server of models that speaks the protocol of the Hugging Face Hub."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse


class Hub:
  """Repositories by name: {revision: {path: content}}, and those that need a token.

  Attributes:
    url: HF_ENDPOINT.
    requests: Method and path of each request.
    cut: Paths whose next download ends after half of the content.
  """

  def __init__(self, url):
    self.url = url
    self.requests = []
    self.cut = set()
    self._commits = {}
    self._branches = {}
    self._gated = set()

  def put(self, name, folder, *, gated=False):
    """Adds a commit with the files of a folder to the main branch; returns the commit."""
    files = {
      path.relative_to(folder).as_posix(): path.read_bytes()
      for path in sorted(pathlib.Path(folder).rglob("*"))
      if path.is_file()
    }
    commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
    self._commits[name, commit] = files
    self._branches[name, "main"] = commit
    if gated:
      self._gated.add(name)
    return commit

  def answer(self, method, path, authorization):
    """Returns status, headers and content."""
    self.requests.append((method, path))
    path = urllib.parse.unquote(path.split("?")[0])
    listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
    file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
    if not listing and not file:
      return 400, {}, f"unknown request {path}".encode()
    name, revision = (listing[1], listing[3] or "main") if listing else (file[1], file[2])
    if all(repository != name for repository, _ in self._commits):
      return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
    commit = self._branches.get((name, revision), revision)
    if (name, commit) not in self._commits:
      return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Not found"}, b""
    files = self._commits[name, commit]
    if name in self._gated and authorization != "Bearer hf_granted" and (file or "tree" in path):
      return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
    if file:
      if file[3] not in files:
        return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Not found"}, b""
      content = files[file[3]]
      tag = hashlib.sha256(content).hexdigest()
      return 200, {"ETag": f'"{tag}"', "X-Repo-Commit": commit}, content
    if listing[2] == "tree":
      found = [
        {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
        for path, content in files.items()
      ]
    else:
      found = {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
    return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


@contextlib.contextmanager
def running():
  """Yields a `Hub` that runs in a thread."""

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
      status, headers, content = hub.answer(
        self.command, self.path, self.headers.get("Authorization")
      )
      first = 0
      asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
      if asked and status == 200:
        first = int(asked[1])
        status, headers["Content-Range"] = 206, f"bytes {first}-{len(content) - 1}/{len(content)}"
      self.send_response(status)
      for key, value in headers.items():
        self.send_header(key, value)
      self.send_header("Content-Length", str(len(content) - first))
      self.end_headers()
      if self.command == "HEAD":
        return
      content = content[first:]
      name = self.path.rsplit("/", 1)[-1]
      if name in hub.cut:
        hub.cut.discard(name)
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True
        return
      self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.daemon_threads = True
  hub = Hub(f"http://127.0.0.1:{server.server_port}")
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  try:
    yield hub
  finally:
    server.shutdown()
    server.server_close()
    thread.join()


def environment(hub, home, **changes):
  """Returns the variables of a process that uses this server and its own cache."""
  proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
  return {**proxies, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **changes}
