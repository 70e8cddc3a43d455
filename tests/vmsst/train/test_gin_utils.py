"""Gin parsing: files, bindings, types of values, and error messages."""

import re

import gin
import memory_store
import pytest

from vmsst.errors import InputError
from vmsst.train import gin_utils

CONFIG = """
from __gin__ import dynamic_registration
from t5x import utils

STEPS = %gin.REQUIRED
SIZE = 4
utils.create_learning_rate_scheduler:
  factors = 'constant'
  warmup_steps = %STEPS
  step_offset = %OFFSET
OFFSET = 0
"""


CONFIGS = """
utils.CheckpointConfig.save = None
utils.SaveCheckpointConfig.period = 1
utils.RestoreCheckpointConfig.mode = 'latest'
utils.DatasetConfig.seed = 1
"""


@pytest.fixture
def parse(tmp_path, monkeypatch):
  """A function that parses CONFIG and bindings. Gin is cleared before and after the test."""
  monkeypatch.setattr(gin.config, "_LOCATION_PREFIXES", [""])
  gin.clear_config()
  (tmp_path / "config.gin").write_text(CONFIG)
  (tmp_path / "bad.gin").write_text(CONFIG + "\nutils.DatasetConfig.splitt = 'x'\n")
  (tmp_path / "configs.gin").write_text(CONFIG + CONFIGS)
  (tmp_path / "syntax.gin").write_text("A = [1,\nB = = 2\n")
  (tmp_path / "includes.gin").write_text("include 'nowhere.gin'\n")

  def run(*bindings, file="config.gin"):
    gin_utils.parse_gin_flags([str(tmp_path)], [file], bindings)

  yield run
  gin.clear_config()


def test_later_bindings_win_and_macros_reach_parameters(parse):
  parse("STEPS = 7", "SIZE = 5", "utils.create_learning_rate_scheduler.factors = 'linear_warmup'")
  from t5x import utils

  assert gin.query_parameter("SIZE/macro.value") == 5
  schedule = gin.get_configurable(utils.create_learning_rate_scheduler)()
  assert float(schedule(1)) == pytest.approx(1 / 7)


def test_files_in_object_stores_are_read_and_included(parse, monkeypatch):
  store = memory_store.installed(monkeypatch)
  store.pipe_file("gs://bucket/runs/own.gin", b"include 'config.gin'\nSTEPS = 7\n")
  store.pipe_file("gs://bucket/runs/last.gin", b"include 'gs://bucket/runs/own.gin'\nSIZE = 5\n")
  parse(file="gs://bucket/runs/last.gin")
  assert gin.query_parameter("SIZE/macro.value") == 5
  assert gin.query_parameter("STEPS/macro.value") == 7
  gin_utils.summarize_gin_config("gs://bucket/new", None, 0)
  assert b"STEPS = 7" in store.cat_file("gs://bucket/new/config.gin")
  with pytest.raises(InputError, match=r"Unable to open file: gs://bucket/none\.gin\. Searched"):
    parse(file="gs://bucket/none.gin")


def test_a_folder_in_the_working_directory_does_not_hide_gin_files(parse, tmp_path, monkeypatch):
  (tmp_path / "work" / "data").mkdir(parents=True)
  monkeypatch.chdir(tmp_path / "work")
  monkeypatch.syspath_prepend(str(tmp_path / "work"))
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "files.gin").write_text(CONFIG)
  parse("STEPS = 7", file="data/files.gin")
  assert gin.query_parameter("STEPS/macro.value") == 7


@pytest.mark.parametrize(
  ("bindings", "file", "message"),
  [
    ([], "config.gin", "STEPS: no value; set --gin.STEPS=VALUE"),
    (
      ["STEP = 3"],
      "config.gin",
      r"--gin\.STEP: no gin file defines the macro STEP; did you mean STEPS",
    ),
    (["util.DatasetConfig.seed = 1"], "config.gin", "No configurable matching 'util.DatasetCon"),
    (["STEPS = nonsense"], "config.gin", "--gin.STEPS = nonsense"),
    (["STEPS = -1"], "config.gin", r"r\.warmup_steps \(STEPS\) is -1: Expected `int` >= 0$"),
    (["STEPS = %SIZE", "SIZE = 'x'"], "config.gin", r"_steps \(STEPS\) is 'x': Expected `int`"),
    (["SIZE = [1, {'a': %SIZE}]"], "config.gin", "SIZE: the value refers to itself; set it to"),
    *(
      ([f"utils.{binding}", "STEPS = 1"], "configs.gin", re.escape(binding.split(" ")[0]) + " is ")
      for binding in (
        "DatasetConfig.shuffle = 'False'",
        "SaveCheckpointConfig.checkpoint_steps = [1, 2.0]",
        "create_learning_rate_scheduler.decay_factor = 1e999",
        "RestoreCheckpointConfig.mode = 'newest'",
      )
    ),
    ([], "bad.gin", r"doesn't have a parameter named 'splitt'.*bad\.gin"),
    ([], "syntax.gin", r"syntax\.gin: line 2: cannot parse"),
    ([], "includes.gin", "includes.gin: Unable to open file: nowhere.gin. Searched"),
  ],
)
def test_errors_name_the_wrong_binding(parse, bindings, file, message):
  with pytest.raises(InputError, match=message):
    parse(*bindings, file=file)


def test_values_with_the_type_of_their_parameter_are_accepted(parse):
  parse(
    "STEPS = 7",
    "utils.create_learning_rate_scheduler.base_learning_rate = 1",  # int for float
    "utils.SaveCheckpointConfig.period = None",
    "utils.SaveCheckpointConfig.checkpoint_steps = (1, %SIZE)",
    "utils.RestoreCheckpointConfig.path = []",
    "utils.RestoreCheckpointConfig.assignment_map = [('a', None), ('b', 'c')]",
    "utils.DatasetConfig.task_feature_lengths = {'inputs': %SIZE, 'b': (2, %SIZE), 'c': None}",
    "utils.DatasetConfig.seed = @utils.create_learning_rate_scheduler()",  # known when called
    file="configs.gin",
  )


def test_t5x_is_the_bundled_runtime_and_errors_refer_to_upstream():
  gin_utils.install_t5x()
  import t5x.trainer

  from vmsst.train import trainer

  assert t5x.trainer is trainer
  assert trainer.__spec__.name == "vmsst.train.trainer"
  with pytest.raises(ModuleNotFoundError, match=r"t5x\.decoding is not part of the bundled"):
    import t5x.decoding
