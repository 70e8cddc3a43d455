"""The module `t5x` of the bundled runtime."""

import pytest

from vmsst.train import aliases


def test_t5x_is_the_bundled_runtime_whose_other_parts_are_said_to_be_upstream_s():
  aliases.install()
  import t5x.trainer

  from vmsst.train import trainer

  assert t5x.trainer is trainer
  assert trainer.__spec__.name == "vmsst.train.trainer"
  with pytest.raises(ModuleNotFoundError, match=r"t5x\.decoding is not part of the bundled"):
    import t5x.decoding
