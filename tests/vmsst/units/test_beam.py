import sys

import pytest
import toy_units

from vmsst import errors
from vmsst.units import base, beam, engines


def test_beam_must_be_installed(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[opus\]'"):
    engines.run("squares", toy_units.squares(tmp_path, 1), beam.Beam("DirectRunner"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_direct_runner_makes_the_same_files(tmp_path):
  pytest.importorskip("apache_beam")
  units = toy_units.squares(tmp_path, 3)
  engines.run("squares", units, beam.Beam("DirectRunner"))
  assert toy_units.contents(tmp_path) == {"0.txt": "0", "1.txt": "1", "2.txt": "4"}
  assert base.result(units[2])["square"] == 4
  failing = [toy_units.Failing(4, str(tmp_path / "4.txt"))]
  with pytest.raises(errors.InputError, match=r"squares by DirectRunner: .*4\.txt.*to resume"):
    engines.run("squares", failing, beam.Beam("DirectRunner"))
