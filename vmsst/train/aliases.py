"""Maps `import t5x.<module>` to the bundled runtime.

The same gin files (`from t5x import utils`) thus run here and, by `python -m t5x.main`, upstream.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

_PACKAGE = "vmsst.train"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds `t5x` and `t5x.*` before sys.path is searched."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname != "t5x" and not fullname.startswith("t5x."):
      return None
    bundled = _PACKAGE + fullname.removeprefix("t5x")
    if importlib.util.find_spec(bundled) is None:
      raise ModuleNotFoundError(
        f"{fullname} is not part of the bundled runtime; run the gin file on upstream T5X by "
        "`python -m t5x.main`",
        name=fullname,
      )
    return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "t5x")

  def create_module(self, spec) -> ModuleType:
    module = importlib.import_module(_PACKAGE + spec.name.removeprefix("t5x"))
    self._spec = module.__spec__
    return module

  def exec_module(self, module: ModuleType) -> None:
    module.__spec__ = self._spec  # the import system set the alias's


def install() -> None:
  """Makes `t5x` the bundled runtime in this process."""
  if any(isinstance(finder, _Finder) for finder in sys.meta_path):
    return
  if "t5x" in sys.modules:
    raise RuntimeError("upstream t5x is already imported; call install() before")
  sys.meta_path.insert(0, _Finder())
