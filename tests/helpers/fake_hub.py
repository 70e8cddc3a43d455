"""A server of models that speaks the protocol of the Hugging Face Hub."""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse

WRITER, READER = "hf_writer", "hf_reader"
"""Tokens: of an account that may do everything, and of one that may write nothing."""
_JSON = {"Content-Type": "application/json"}


class Hub:
  """Repositories by name: {revision: {path: content}}, and those that need a token.

  Attributes:
    url: HF_ENDPOINT.
    requests: Method and path of each request.
    messages: Commit messages of uploads.
    private: Names of private repositories.
    branches: Commits by names of repository and branch.
  """

  def __init__(self, url):
    self.url = url
    self.requests = []
    self.messages = []
    self.private = set()
    self._commits = {}
    self.branches = {}
    self._gated = set()

  def put(self, name, folder, *, gated=False):
    """Adds a commit with the files of a folder to the main branch; returns the commit."""
    files = {
      path.relative_to(folder).as_posix(): path.read_bytes()
      for path in sorted(pathlib.Path(folder).rglob("*"))
      if path.is_file()
    }
    if gated:
      self._gated.add(name)
    return self._commit(name, "main", files)

  def files(self, name, revision="main"):
    """Returns the files of a branch: {path: content}."""
    return self._commits[name, self.branches[name, revision]]

  def _commit(self, name, branch, files):
    commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
    self._commits[name, commit] = files
    self.branches[name, branch] = commit
    return commit

  def answer(self, method, path, authorization, body=b""):
    """Returns status, headers and content."""
    self.requests.append((method, path))
    path = urllib.parse.unquote(path.split("?")[0])
    if method in ("POST", "PUT"):
      return self._write(path, (authorization or "").removeprefix("Bearer "), body)
    return self._read(path, authorization)

  def _read(self, path, authorization):
    listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
    file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
    if not listing and not file:
      return 400, {}, f"unknown request {path}".encode()
    name, revision = (listing[1], listing[3] or "main") if listing else (file[1], file[2])
    if all(repository != name for repository, _ in self._commits):
      return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
    commit = self.branches.get((name, revision), revision)
    if (name, commit) not in self._commits:
      return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Not found"}, b""
    files = self._commits[name, commit]
    if name in self._gated and authorization != f"Bearer {WRITER}" and (file or "tree" in path):
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
      siblings = [{"rfilename": path} for path in files]
      found = {"id": name, "sha": commit, "private": name in self.private, "siblings": siblings}
    return 200, _JSON, json.dumps(found).encode()

  def _write(self, path, token, body):
    if path == "/api/validate-yaml":
      return 200, _JSON, b"{}"
    if token != WRITER:
      return 403, {"X-Error-Message": "You have no rights"}, b""
    if path == "/api/repos/create":
      found = self._create(json.loads(body))
    else:
      name, action, branch = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(\w+)/(.+)", path).groups()
      if action == "branch":
        self.branches.setdefault((name, branch), self.branches[name, "main"])
        found = 200, {}
      elif action == "preupload":
        files = [
          {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
          for file in json.loads(body)["files"]
        ]
        found = (200, {"files": files}) if (name, branch) in self.branches else (404, {})
      else:
        found = self._change(name, branch, [json.loads(line) for line in body.splitlines()])
    return found[0], _JSON, json.dumps(found[1]).encode()

  def _create(self, asked):
    name = f"{asked['organization']}/{asked['name']}"
    found = {"url": f"{self.url}/{name}", "id": name}
    if (name, "main") in self.branches:
      return 409, found
    if asked.get("private") or asked.get("visibility") == "private":
      self.private.add(name)
    self._commit(name, "main", {".gitattributes": b""})
    return 200, found

  def _change(self, name, branch, lines):
    files = dict(self.files(name, branch))
    for line in lines:
      kind, value = line["key"], line["value"]
      if kind == "header":
        self.messages.append(value["summary"])
      elif kind == "file":
        files[value["path"]] = base64.b64decode(value["content"])
      else:
        assert kind == "deletedFile"
        del files[value["path"]]
    commit = self._commit(name, branch, files)
    return 200, {"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit}


@contextlib.contextmanager
def running():
  """Yields a `Hub` that runs in a thread."""

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
      size = self.headers.get("Content-Length")
      status, headers, content = hub.answer(
        self.command,
        self.path,
        self.headers.get("Authorization"),
        self._chunks() if size is None else self.rfile.read(int(size)),
      )
      self.send_response(status)
      for key, value in headers.items():
        self.send_header(key, value)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(content)

    do_HEAD = do_POST = do_PUT = do_GET

    def _chunks(self):
      """Returns the body of a request that is sent in chunks; without a body, nothing."""
      found = b""
      while self.headers.get("Transfer-Encoding") == "chunked":
        size = int(self.rfile.readline(), 16)
        found += self.rfile.read(size)
        self.rfile.readline()
        if not size:
          break
      return found

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
  plain = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
  return {**proxies, **plain, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **changes}
