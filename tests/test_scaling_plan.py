"""The FLOPs of docs/scaling.md equal those of `--dry_run`."""

import importlib
import pathlib
import sys

import pytest
import toy_runs

from vmsst.launch import dry_run
from vmsst.launch.runtime import adafactor, data, partitioning
from vmsst.models import vmsst as vmsst_model
from vmsst.networks import t5
from vmsst.networks import vmsst as vmsst_network
from vmsst.text import vocabularies

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def plan(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  yield importlib.import_module("scaling_plan")
  del sys.modules["scaling_plan"]


@pytest.mark.slow
def test_flops_of_a_step_equal_those_of_a_dry_run(plan, monkeypatch):
  sizes = {"D": 64, "F": 176, "L": 2, "V": 512, "T": 16}
  for name, value in sizes.items():
    monkeypatch.setattr(plan, name, value)
  pairs = 8
  config = t5.T5Config(
    vocab_size=sizes["V"], emb_dim=64, num_heads=4, head_dim=16, mlp_dim=176, num_encoder_layers=2
  )
  model = vmsst_model.VmsstModel(
    network=vmsst_network.VmsstNetwork(config=config, latent_dim=64),
    input_vocabulary=vocabularies.ByteVocabulary(),
    optimizer_def=adafactor.Adafactor(
      logical_factor_rules=adafactor.standard_logical_factor_rules()
    ),
    max_length=16,
  )
  cfg = data.DatasetConfig(
    mixture_or_task_name=None,
    task_feature_lengths={"inputs": 16, "targets": 16, "input_language": 1, "target_language": 1},
    split="train",
    batch_size=pairs,
    shuffle=True,
    seed=0,
  )
  report = dry_run.describe(
    model, cfg, partitioning.PjitPartitioner(num_partitions=1), toy_runs.make_trainer()
  )
  assert plan.step_flops(pairs) == pytest.approx(report["flops_per_step"], rel=0.03)


def test_the_plan_of_the_paper_s_size_is_printed(plan, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["scaling_plan.py", "--mfu=0.5"])
  plan.main()
  text = capsys.readouterr().out
  assert "A step: 1.445e+15 FLOPs" in text  # as `t5x train --gin_file=vmsst_24l.gin --dry_run`
  assert text.count("TPU v5p") == 4
  assert plan._time(90) == "90 s"
