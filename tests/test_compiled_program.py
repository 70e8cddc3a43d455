"""Costs of compiled programs, compared with counts by hand."""

import importlib
import json
import pathlib
import sys

import eight_devices
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
M, K, N, TRIPS = 16, 64, 24, 5

# A module as libtpu prints it, shortened.
TPU_MODULE = """HloModule jit_step, is_scheduled=true

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %add.1 = f32[2]{0} add(%p, %p), metadata={op_name="jit(step)/optimizer/add"}
}

%body (arg: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %arg = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %next = s32[]{:T(128)} add(%i, %one)
  %all-reduce.3 = f32[8,128]{1,0:T(8,128)} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%sum
  %dot.3 = f32[8,128]{1,0:T(8,128)} negate(%all-reduce.3), SCOPE, CYCLES"700"}}
  ROOT %tuple.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%next, %dot.3)
}

%condition (arg.1: (s32[], f32[8,128])) -> pred[] {
  %limit = s32[]{:T(128)} constant(24)
  %arg.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%j, %limit), direction=LT
}

ENTRY %main (a: f32[2], state: (s32[], f32[8,128])) -> (f32[2], f32[2]) {
  %a = f32[2]{0} parameter(0)
  %state = (s32[], f32[8,128]{1,0}) parameter(1)
  %while.1 = (s32[], f32[8,128]{1,0}) while(%state), condition=%condition, body=%body
  %fusion = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused, CYCLES"30"}}
  ROOT %tuple = (f32[2]{0}, f32[2]{0}) tuple(%fusion, %a)
}
""".replace("CYCLES", 'backend_config={"window_config":{"estimated_cycles":').replace(
  "SCOPE", 'metadata={op_name="jit(step)/transpose(jvp(N))/encoder/mlp/wi_0"}'
)


@pytest.fixture
def compiled_program(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  yield importlib.import_module("compiled_program")
  del sys.modules["compiled_program"]


def test_a_module_of_a_tpu_is_read_with_its_loops_unrolled(compiled_program):
  program = compiled_program.Program(TPU_MODULE)
  # A fusion has the scope of its last named instruction.
  assert program.scopes["fusion"] == ("fusion", "jit(step)/optimizer/add")
  assert program.scopes["tuple"] == ("tuple", "")
  assert program.runs == {"main": (1, False), "body": (24, False), "fused": (1, True)}
  assert program.cycles_by_scope() == {
    "jit(step)/optimizer/add": 30,
    "jit(step)/transpose(jvp(N))/encoder/mlp/wi_0": 24 * 700,
  }
  # Twice 3/4 of the array, in groups of 4 devices.
  assert program.collective_bytes(8) == {"all-reduce": 24 * 2 * 3 / 4 * 4 * 8 * 128}


def test_arrays_and_groups(compiled_program):
  assert (
    compiled_program.array_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, f32[], pred[7])") == 12 + 4 + 7
  )
  assert compiled_program.array_bytes("f8e4m3fn[10], s4[8]{0}, c64[2]") == 10 + 4 + 16
  assert compiled_program.group_size("replica_groups={{0,2},{1,3}}", 8) == 2
  assert compiled_program.group_size("replica_groups={}", 8) == 8


def repeated(x_MK, kernels_TKK, last_KN):
  x_MK, _ = jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x_MK, kernels_TKK)
  return x_MK @ last_KN


def test_flops_count_each_trip_of_a_loop(compiled_program):
  shapes = (M, K), (TRIPS, K, K), (K, N)
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  compiled = jax.jit(repeated).lower(*arrays).compile()
  costs = compiled_program.Program(compiled.as_text()).costs()
  matmuls = 2 * M * K * (TRIPS * K + N)
  assert costs["flops"] == pytest.approx(matmuls, rel=0.02)  # the rest are the loop's indices
  read = 4 * (TRIPS * K * K + K * N)
  assert read < costs["bytes accessed"] < 5 * read


def run_on_eight_devices(folder):
  """Saves a program that gathers a kernel in each trip of its loop."""
  mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
  rows, kernels = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], [None, "data"]))
  shapes = ((8 * M, K), rows), ((TRIPS, K, K), kernels), ((K, N), rows)
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=x) for shape, x in shapes]
  loss = jax.jit(
    lambda *x: jnp.sum(repeated(*x)), out_shardings=NamedSharding(mesh, PartitionSpec())
  )
  (folder / "program.hlo").write_text(loss.lower(*arrays).compile().as_text())
  print(json.dumps(jax.device_count()))


def test_collectives_count_each_trip_of_a_loop(compiled_program, tmp_path):
  assert eight_devices.run(__file__, tmp_path).strip() == "8"
  program = compiled_program.Program((tmp_path / "program.hlo").read_text())
  found = program.collective_bytes(8)
  # A device receives 7/8 of each kernel.
  assert found["all-gather"] == 4 * 7 / 8 * (TRIPS * K * K + K * N)
  assert found["all-reduce"] == 4 * 2 * 7 / 8
