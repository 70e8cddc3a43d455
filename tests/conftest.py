"""Settings and fixtures shared by all tests.

With `--only-allowed-skips`, tests that skip for other reasons than _ALLOWED fail.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import signal

import pytest

# TensorFlow and Triton (of torch) each have an LLVM. The process aborts if Triton's is the second.
with contextlib.suppress(ImportError):
  import triton.knobs  # noqa: F401

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DEFAULT_DATA = _ROOT.parent / "shared" / "data"

# Compiling takes most of the time of the tests. The processes of a run, and those that they start,
# share compiled functions; XLA's expensive optimizations are off.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# For the processes that tests start; pyproject.toml has the same for this one.
os.environ.setdefault("PYTHONWARNINGS", "ignore:Error reading persistent compilation cache entry")
# XLA's older code generator for CPUs, in one thread, takes half the CPU time. XLA aborts on unknown
# flags, and other versions may not have these.
_QUICK_TO_COMPILE = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
  os.environ.setdefault("XLA_FLAGS", _QUICK_TO_COMPILE)

# A shell ignores Ctrl-C in what it runs in the background, and so would the processes of tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

# These take longest. They run first, so that all processes of a run end at about the same time.
_LONG = ("runs", "launch", "train", "test_readme.py", "test_examples.py")

# What CI does not have. Parts of the reasons that the tests give.
_ALLOWED = (
  "upstream T5X is not installed",
  "needs root",
  "needs an accelerator",
  "needs a server of an object store",
  "no real data at none:",  # only with VMSST_TEST_DATA=none
  "no released encoders",
)


def pytest_addoption(parser):
  parser.addoption(
    "--only-allowed-skips", action="store_true", help="fail tests that skip for other reasons"
  )


def pytest_configure(config):
  if config.getoption("--only-allowed-skips"):
    config.pluginmanager.register(_Strict())


class _Strict:
  """Turns skips for other reasons than the allowed ones into failures."""

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_makereport(self):
    return _checked((yield))

  @pytest.hookimpl(wrapper=True)
  def pytest_make_collect_report(self):
    return _checked((yield))


def _checked(report):
  if report.skipped and not hasattr(report, "wasxfail"):
    *_, reason = report.longrepr
    if not any(part in reason for part in _ALLOWED):
      report.outcome = "failed"
      report.longrepr = f"{report.nodeid}: {reason}: CI must not skip this test"
  return report


def pytest_collection_modifyitems(items):
  """Puts the files with the longest tests first."""
  items.sort(key=lambda item: not {*item.path.relative_to(_ROOT).parts} & {*_LONG})


@pytest.fixture(scope="session")
def data_root() -> pathlib.Path:
  """Folder of the real test data ($VMSST_TEST_DATA); skips the test if it is absent."""
  root = pathlib.Path(os.environ.get("VMSST_TEST_DATA", _DEFAULT_DATA))
  if not (root / "tatoeba").is_dir():
    pytest.skip(
      f"no real data at {root}: set VMSST_TEST_DATA to a folder laid out as its README says"
    )
  return root


@pytest.fixture(scope="session")
def released_encoders() -> pathlib.Path:
  """Folder of all-MiniLM-L6-v2 and multilingual-e5-small; skips the test if it is absent."""
  folder = pathlib.Path(os.environ.get("VMSST_TEST_ENCODERS", "none"))
  if not folder.is_dir():
    pytest.skip(f"no released encoders at {folder}: set VMSST_TEST_ENCODERS to their folder")
  return folder


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory):
  """Files of tokenizers of Hugging Face's kinds, "bert" and "xlmr"."""
  import tiny_tokenizers

  return tiny_tokenizers.save(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(params=["local", "store"])
def folder(request, tmp_path, monkeypatch):
  """A new folder on disk, or in an object store."""
  if request.param == "local":
    return str(tmp_path / "out")
  import memory_store

  memory_store.installed(monkeypatch)
  return "gs://bucket/out"
