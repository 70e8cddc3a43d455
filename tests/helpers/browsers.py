"""A headless browser that looks at pages."""

import contextlib
import functools
import http.server
import json
import queue
import shutil
import subprocess
import threading

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0"


def command(profile, *options):
  """Returns the command of a browser with its own profile folder; skips the test without one."""
  browser = next(filter(None, map(shutil.which, _NAMES)), None)
  if browser is None:
    pytest.skip(f"no browser to look at the page with: none of {', '.join(_NAMES)} is installed")
  return [browser, *_FLAGS.split(), f"--user-data-dir={profile}", *options]


def complaints(log):
  """Returns the lines of a browser's log that its console shows."""
  return [line for line in log.splitlines() if ":CONSOLE" in line]


def visit(site, script, profile, *, timeout):
  """Runs a script in an empty page of a site.

  Args:
    site: Folder of the site.
    script: JavaScript; `done(value)` ends it.
    profile: Folder for the browser's profile.
    timeout: Seconds that the script may take.

  Returns:
    The value, the paths that the site lacks, and what the browser's console shows.
  """
  answers, missing = queue.Queue(), set()
  page = (
    '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body><script>'
    "const done = value => fetch('/done', {method: 'POST', body: JSON.stringify(value)});\n"
    f"{script}</script>"
  )

  class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
      with contextlib.suppress(ConnectionError):  # the browser leaves a page that still loads
        if self.path == "/probe":
          self._send(page.encode())
        else:
          super().do_GET()

    def do_POST(self):
      content = self.rfile.read(int(self.headers["Content-Length"]))
      self._send(b"")
      answers.put(json.loads(content))

    def _send(self, content):
      self.send_response(200)
      self.send_header("Content-Type", "text/html")
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def send_error(self, code, *arguments, **options):
      missing.add(self.path)
      super().send_error(code, *arguments, **options)

    def log_message(self, *_):
      pass

  handler = functools.partial(Handler, directory=str(site))
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
  server.daemon_threads = True
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  log = profile.with_suffix(".log")
  address = f"http://127.0.0.1:{server.server_port}/probe"
  # The port for debugging keeps the browser open after the page has loaded.
  started = command(profile, "--no-proxy-server", "--remote-debugging-port=0", address)
  try:
    with log.open("wb") as stream:
      process = subprocess.Popen(started, stdout=stream, stderr=stream)
      try:
        with contextlib.suppress(queue.Empty):
          value = answers.get(timeout=timeout)
          return value, missing, complaints(log.read_text(errors="replace"))
      finally:
        process.terminate()
        process.wait(60)
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
  raise TimeoutError(f"no answer after {timeout} s:\n{log.read_text(errors='replace')[-3000:]}")
