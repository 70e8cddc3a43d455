"""Estimates the time of a full VMSST run and of a search over PAQ on pods and GPUs.

Prints the Markdown tables of docs/scaling.md. All values are calculated; none is measured. The
assumptions are flags or in `ASSUMPTIONS`; `vmsst.arrays.devices` has the hardware's rates and
sources.
"""

import argparse
import dataclasses
from collections.abc import Sequence

from vmsst.arrays import devices
from vmsst.losses import fused_gradients
from vmsst.search import factory_strings

GB, TB = 1e9, 1e12
DAY = 24 * 3600

# VMSST, 24 layers (gin/sizes/24l.gin, gin/vmsst_24l.gin; VMSST paper, section 6).
D, F, L, V, T = 1024, 2816, 24, 250_112, 32
BATCH, PAIRS = 2048, 216_000_000
PARAMETERS = 2_029_752_832  # from --dry_run
QUESTIONS = 65_000_000  # PAQ (VMSST paper, section 6.1)
QUERIES = 3_610 + 26 * 6_758  # NQ test questions, and MKQA ones with an answer in 26 languages
# How PAQ is searched (search/device_search.py): queries and questions compared at once, and
# questions per query that are compared again in float32.
QUERY_BLOCK, TARGET_BLOCK, CANDIDATES = 1 << 15, 1 << 13, 8

# Internet scale: sentences to encode, and sentences per side to mine.
SENTENCES, SIDE = 1_000_000_000, 100_000_000
# Measured on one worker of 2 cores (docs/performance.md): sentences and similarities per second.
MT5_SMALL_PER_S = 426
EXACT_PER_S = 100_000**2 / 134.8
# Vectors of width 1,024 that one core prepares per second: `exact_search.DistinctVectors`.
PREPARED_PER_S = 340_000
# Measured by benchmarks/index_search.py ("rates") on 2 cores: IVF-PQ, a million vectors, width 512.
SECONDS_PER_CODE = 2.20e-8
SECONDS_PER_RESCORING = 1.13e-4
SECONDS_TO_ENCODE = 1.24e-4  # a vector: 1 / "filled_per_s", less the FLOPs of comparing the centers
CPU_FLOPS = 108e9
INDEX_BYTES = 64 + 8  # a code and a row number
# Assumed.
CPU_PRICE = 0.1  # US dollars per hour of 2 cores
FLOAT32_PASSES = 6  # matmuls in bfloat16 for one of XLA's highest precision


# Assumed prices in US dollars per hour; devices without one are left out.
PRICES = {
  "TPU v3": 2.0,
  "TPU v4": 3.22,
  "TPU v5e": 1.2,
  "TPU v5p": 4.2,
  "H100 SXM": 3.0,
  "H200 SXM": 4.0,
}

# Chips and microbatches (gin/meshes/24l_*.gin).
TRAINING = [
  ("TPU v3", 128, 1),
  ("TPU v4", 32, 1),
  ("TPU v4", 128, 1),
  ("TPU v5e", 8, 4),
  ("TPU v5e", 32, 1),
  ("TPU v5e", 128, 1),
  ("TPU v5p", 8, 1),
  ("TPU v5p", 32, 1),
  ("H100 SXM", 1, 16),
  ("H100 SXM", 8, 2),
  ("H200 SXM", 1, 8),
  ("H200 SXM", 8, 1),
]
SEARCH = [
  ("TPU v4", 8),
  ("TPU v5e", 8),
  ("TPU v5e", 16),
  ("TPU v5p", 4),
  ("H100 SXM", 1),
  ("H100 SXM", 8),
  ("H200 SXM", 1),
]

ASSUMPTIONS = """\
- Model FLOPs utilization (MFU): {mfu:.0%} in training and encoding, {search_mfu:.0%} in search.
  Nothing was measured on these devices.
- A step computes the matmuls of the model and their gradients; `remat = 'minimal'` recomputes all
  but the weight matmuls.
- Collectives and matmuls overlap by half: a step takes the longer of the two plus half of the
  shorter.
- PAQ's questions have {tokens} tokens, padding included. Each host sends {link:.0f} GB/s to its
  chips. Nothing overlaps: encoding, preparing, sending and comparing follow each other.
- Prices are list prices without discounts from public pages; they change, so check them.
- Memory: reads and writes of kernels and parameters that matmuls wait for at worst; not added."""


def encoder_flops(tokens: int, *, injected: bool = False) -> float:
  """Returns the FLOPs of a forward pass of 24 layers per sentence; `injected`: decoder layers."""
  layer = tokens * 2 * (4 * D * D + 3 * D * F) + 2 * 2 * tokens * tokens * D
  if injected:  # W [LN(x); z_sem; z_lang], the part of the latents once per sentence
    layer += tokens * 2 * D * D + 2 * 2 * D * D
  return L * layer


def vocabulary_flops(*, dense: bool) -> float:
  """Returns the FLOPs of a vocabulary projection per sentence, forward; `dense`: the paper's."""
  if dense:
    return T * 2 * 3 * D * V
  return T * 2 * D * V + 2 * 2 * D * V


def step_flops(pairs: int = BATCH, *, dense: bool = False) -> float:
  """Returns the FLOPs of a VMSST step: two encoders on both sides, four decodings per pair."""
  encoders = 2 * 2 * encoder_flops(T) + 2 * 4 * 2 * D * D
  decoder = 4 * (encoder_flops(T, injected=True) + vocabulary_flops(dense=dense))
  return 3 * pairs * (encoders + decoder)


def gathered_bytes(chips: int, microbatches: int) -> float:
  """Returns the bytes that a chip receives in a step with fully sharded parameters.

  For each microbatch: parameters (bfloat16) in the forward and in the backward pass, and gradients
  (float32), of which each chip gets its part of the sum.
  """
  return microbatches * (2 + 2 + 4) * PARAMETERS * (chips - 1) / chips


def memory_bytes(device: devices.Device, chips: int, microbatches: int) -> float:
  """Returns the main memory traffic of a chip in a step in bytes, without activations.

  The vocabulary projection reads the kernel twice (bfloat16) per chunk of tokens, and reads and
  writes its gradient (float32). The update and the sum of gradients access all parameters.
  """
  chunks = 4 * BATCH * T / fused_gradients.default_chunk(V, device) / chips
  kernel = D * V
  update = (4 + 4 + 4 + microbatches * 3 * 4) * PARAMETERS / chips
  return chunks * (2 * 2 + 2 * 4) * kernel + update


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [head, ["---"] * len(head), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _time(seconds: float) -> str:
  if seconds < 120:
    return f"{seconds:.0f} s"
  if seconds < 2 * 3600:
    return f"{seconds / 60:.0f} min"
  return f"{seconds / 3600:.1f} h" if seconds < 2 * DAY else f"{seconds / DAY:.1f} days"


def devices_table() -> str:
  """Returns the specifications of each device."""
  head = ["", "TFLOP/s, bf16", "memory, GB", "GB/s", "link, GB/s", "$/h, assumed", "source"]
  rows = [
    [
      d.name,
      f"{d.flops / 1e12:.0f}",
      f"{d.memory / GB:.0f}",
      f"{d.bandwidth / GB:.0f}",
      f"{d.link / GB:.0f}",
      f"{PRICES[d.name]:.2f}",
      d.source,
    ]
    for d in devices.DEVICES
    if d.name in PRICES
  ]
  return _table(head, rows)


def training_table(mfu: float) -> str:
  """Returns the times of one pass over 216 million pairs."""
  head = ["chips", "pairs/s", "matmuls, s", "collectives, s", "memory, s", "step, s", "run", "$"]
  rows = []
  for name, chips, microbatches in TRAINING:
    device = devices.BY_NAME[name]
    matmuls = step_flops() / chips / device.flops / mfu
    collectives = gathered_bytes(chips, microbatches) / device.link
    memory = memory_bytes(device, chips, microbatches) / device.bandwidth
    step = max(matmuls, collectives) + 0.5 * min(matmuls, collectives)
    seconds = step * PAIRS / BATCH
    rows.append(
      [
        f"{chips} {name}",
        f"{BATCH / step:,.0f}",
        f"{matmuls:.2f}",
        f"{collectives:.2f}",
        f"{memory:.2f}",
        f"{step:.2f}",
        _time(seconds),
        f"{seconds / 3600 * chips * PRICES[device.name]:,.0f}",
      ]
    )
  return _table(head, rows)


def search_table(mfu: float, search_mfu: float, tokens: int, link: float) -> str:
  """Returns the times of encoding and searching all of PAQ, as `vmsst eval` does.

  A shard of questions is encoded, prepared on the host (lengths and hashes), sent once for every
  block of queries, and compared in bfloat16. The scores, and the vectors of the candidates that are
  compared again, pass through the main memory of the chips.
  """
  head = ["chips", "encode", "prepare", "send", "search: matmuls", "search: memory", "total", "$"]
  rows = []
  sent = -(-QUERIES // QUERY_BLOCK) * QUESTIONS * D * 4
  scores = 2 * 4 * QUESTIONS * QUERIES
  candidates = QUERIES * QUESTIONS / TARGET_BLOCK * CANDIDATES * D * 4
  for name, chips in SEARCH:
    device = devices.BY_NAME[name]
    seconds = [
      QUESTIONS * encoder_flops(tokens) / chips / device.flops / mfu,
      QUESTIONS / PREPARED_PER_S,
      sent / (link * GB),
      2 * D * QUESTIONS * QUERIES / chips / device.flops / search_mfu,
      # Each chip has its part of the targets of a block, and as many candidates as a single chip.
      (scores / chips + candidates) / device.bandwidth,
    ]
    cost = sum(seconds) / 3600 * chips * PRICES[device.name]
    rows.append([f"{chips} {name}", *map(_time, (*seconds, sum(seconds))), f"{cost:.2f}"])
  return _table(head, rows)


@dataclasses.dataclass(frozen=True)
class Job:
  """A large job.

  Attributes:
    name: Name.
    worker: What a worker is.
    work: Worker-seconds.
    workers: Number of workers.
    price: Assumed price of a worker in US dollars per hour.
    stored: Bytes on disk.
    measured: Whether the rate of a worker is measured; else it is an assumption.
  """

  name: str
  worker: str
  work: float
  workers: int
  price: float
  stored: float
  measured: bool


def center_seconds(lists: int) -> float:
  """Returns the time to rotate a vector of width 1,024 and to compare it with all centers."""
  return 2 * (lists + D) * D / CPU_FLOPS


def default_lists(count: int) -> int:
  """Returns the number of lists of the default index of `count` vectors."""
  return factory_strings.parse(factory_strings.default(count, D)).lists


def query_seconds(count: int) -> float:
  """Returns the time of a query in the default index of `count` vectors.

  Scanning codes and comparing candidates take the measured time each.
  """
  lists = default_lists(count)
  codes = factory_strings.default_probes(lists) * count / lists
  return center_seconds(lists) + codes * SECONDS_PER_CODE + SECONDS_PER_RESCORING


def jobs(mfu: float, search_mfu: float) -> list[Job]:
  """Returns the jobs of the table: encoding, and mining exactly and with indexes."""
  gpu = devices.BY_NAME["H100 SXM"]
  vectors = SENTENCES * D * 2
  sides = 2 * SIDE * D * 2
  codes = 2 * SIDE * INDEX_BYTES
  h100 = gpu.flops * mfu / encoder_flops(T)
  exact = gpu.flops * search_mfu / FLOAT32_PASSES / (2 * D)
  fill = 2 * SIDE * (center_seconds(default_lists(SIDE)) + SECONDS_TO_ENCODE)
  return [
    Job("encode, mt5-small", "2 cores", SENTENCES / MT5_SMALL_PER_S, 256, CPU_PRICE, vectors, True),
    Job("encode, 24 layers", "H100", SENTENCES / h100, 8, PRICES[gpu.name], vectors, False),
    Job("mine exactly", "2 cores", SIDE**2 / EXACT_PER_S, 256, CPU_PRICE, sides, True),
    Job("mine exactly", "H100", SIDE**2 / exact, 8, PRICES[gpu.name], sides, False),
    Job("fill two indexes", "2 cores", fill, 256, CPU_PRICE, sides + codes, True),
    Job(
      "mine with indexes",
      "2 cores",
      2 * SIDE * query_seconds(SIDE),
      256,
      CPU_PRICE,
      sides + codes,
      True,
    ),
  ]


def jobs_table(mfu: float, search_mfu: float, efficiency: float) -> str:
  """Returns workers, hours, bytes and cost of each job."""
  head = ["job", "worker", "rate", "work", "workers", "time", "TB on disk", "$"]
  rows = []
  for job in jobs(mfu, search_mfu):
    seconds = job.work / job.workers / efficiency
    rows.append(
      [
        job.name,
        job.worker,
        "measured" if job.measured else "assumed",
        f"{job.work / 3600:,.0f} h",
        str(job.workers),
        _time(seconds),
        f"{job.stored / TB:.2f}",
        f"{seconds / 3600 * job.workers * job.price:,.0f}",
      ]
    )
  return _table(head, rows)


def main() -> None:
  """Prints all tables."""
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("--mfu", type=float, default=0.4, help="MFU of training and encoding (default: 0.4)")
  add("--search_mfu", type=float, default=0.2, help="MFU of search (default: 0.2)")
  add("--tokens", type=int, default=16, help="tokens per question with padding (default: 16)")
  add("--link", type=float, default=25.0, help="GB/s from host to chips (default: 25)")
  add("--efficiency", type=float, default=0.85, help="of many workers (default: 0.85)")
  options = parser.parse_args()
  ours, dense = step_flops(), step_flops(dense=True)
  steps = PAIRS / BATCH
  print(f"Assumptions:\n\n{ASSUMPTIONS.format(**vars(options))}\n")
  print(devices_table())
  print(
    f"\nA step: {ours:.3e} FLOPs, {ours / BATCH:.2e} per pair, of which the vocabulary projection "
    f"is {12 * BATCH * vocabulary_flops(dense=False) / ours:.0%}. With the dense projection of the "
    f"paper: {dense:.3e} ({dense / ours:.2f} times)."
  )
  print(f"216 million pairs: {steps:,.0f} steps, {ours * steps:.2e} FLOPs.\n")
  print(training_table(options.mfu))
  v3 = devices.BY_NAME["TPU v3"]
  large = step_flops(8192, dense=True) * 100_000 / (128 * v3.flops * options.mfu)
  print(
    f"\nThe paper's largest ablation, 100,000 steps of 8,192 pairs with the dense projection, on "
    f"its 128 TPU v3, by the same estimate: {_time(large)}.\n"
  )
  encode = QUESTIONS * encoder_flops(options.tokens)
  print(
    f"PAQ: {encode:.2e} FLOPs to encode, {2 * D * QUESTIONS * QUERIES:.2e} to compare with "
    f"{QUERIES:,} queries; {QUERIES * D * 4 / GB:.2f} GB of queries.\n"
  )
  print(search_table(options.mfu, options.search_mfu, options.tokens, options.link))
  print(
    f"\nInternet scale: {SENTENCES / 1e9:.0f} billion sentences to encode, {SIDE / 1e6:.0f} "
    f"million on each side to mine. A query in an index takes {1e3 * query_seconds(SIDE):.1f} ms.\n"
  )
  print(jobs_table(options.mfu, options.search_mfu, options.efficiency))


if __name__ == "__main__":
  main()
