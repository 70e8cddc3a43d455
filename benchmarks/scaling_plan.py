"""Arithmetic of a full VMSST run and of a search over PAQ on pods and GPUs: nothing is measured.

Prints Markdown tables (docs/scaling.md has them). What is assumed is a flag or stands in
`ASSUMPTIONS`; figures of hardware have their source in `DEVICES`.
"""

import argparse
import dataclasses
from collections.abc import Sequence

GB, TB = 1e9, 1e12
DAY = 24 * 3600

# VMSST, 24 layers (gin/sizes/24l.gin, gin/vmsst_24l.gin; VMSST paper, section 6).
D, F, L, V, T = 1024, 2816, 24, 250_112, 32
BATCH, PAIRS = 2048, 216_000_000
PARAMETERS = 2_029_752_832  # of --dry_run
QUESTIONS = 65_000_000  # PAQ (VMSST paper, section 6.1)
QUERIES = 3_610 + 26 * 6_758  # NQ's test questions, and those of MKQA with an answer, 26 languages
VOCABULARY_CHUNK = 512  # tokens whose logits a device has at a time (losses/vocabulary.py)


@dataclasses.dataclass(frozen=True)
class Device:
  """A chip.

  Attributes:
    name: Name.
    flops: Peak of dense bfloat16 products, a second.
    memory: Bytes.
    bandwidth: Of its memory, bytes a second.
    link: What it sends to its neighbors, bytes a second, one way.
    price: US dollars an hour, assumed.
    source: Of all but the price.
  """

  name: str
  flops: float
  memory: float
  bandwidth: float
  link: float
  price: float
  source: str


# Links of v3, v4 and v5e: the pod's all-reduce bandwidth by its chips. v5p: half of 4,800 Gbit/s.
# H100 and H200: half of NVLink's 900 GB/s, within a node of 8.
DEVICES = [
  Device(
    "TPU v3", 123e12, 32 * 2**30, 900 * GB, 340 * TB / 1024, 2.0, "cloud.google.com/tpu/docs/v3"
  ),
  Device(
    "TPU v4", 275e12, 32 * 2**30, 1200 * GB, 1100 * TB / 4096, 3.22, "cloud.google.com/tpu/docs/v4"
  ),
  Device(
    "TPU v5e", 197e12, 16 * GB, 819 * GB, 51.2 * TB / 256, 1.2, "cloud.google.com/tpu/docs/v5e"
  ),
  Device("TPU v5p", 459e12, 95 * GB, 2765 * GB, 300 * GB, 4.2, "cloud.google.com/tpu/docs/v5p"),
  Device(
    "H100 SXM", 989.4e12, 80 * GB, 3350 * GB, 450 * GB, 3.0, "nvidia.com/en-us/data-center/h100"
  ),
  Device(
    "H200 SXM", 989.4e12, 141 * GB, 4800 * GB, 450 * GB, 4.0, "nvidia.com/en-us/data-center/h200"
  ),
]
BY_NAME = {device.name: device for device in DEVICES}

# Chips, and parts that a batch is worked through in (gin/meshes/24l_*.gin).
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
- Share of the peak that products reach (MFU): {mfu:.0%} in training and encoding,
  {search_mfu:.0%} in the product of a search. Nothing was measured on these devices.
- A step does the products of the model and their gradients; with `remat = 'minimal'` only what is
  no product with weights is done again.
- Collectives and products overlap by half: a step takes the longer of the two and half of the
  shorter.
- Questions have {tokens} tokens, padding among them. Vectors are float16 on the disk, which gives
  {disk:.0f} GB/s; each is read once, and all queries are compared with it.
- Prices are list prices without discount as public pages quote them; they change, so look them up.
- Memory: the passes over kernels and parameters that products wait for at worst; not added."""


def encoder_flops(tokens: int, *, injected: bool = False) -> float:
  """Forward pass of 24 layers over a sentence; `injected`: those of the decoder."""
  layer = tokens * 2 * (4 * D * D + 3 * D * F) + 2 * 2 * tokens * tokens * D
  if injected:  # W [LN(x); z_sem; z_lang], the latents' part once a sentence
    layer += tokens * 2 * D * D + 2 * 2 * D * D
  return L * layer


def vocabulary_flops(*, dense: bool) -> float:
  """Forward pass of the vocabulary projection of a sentence; `dense`: as the paper writes it."""
  if dense:
    return T * 2 * 3 * D * V
  return T * 2 * D * V + 2 * 2 * D * V


def step_flops(pairs: int = BATCH, *, dense: bool = False) -> float:
  """Products of a step of VMSST: two encoders on both sides, four decodings of a pair."""
  encoders = 2 * 2 * encoder_flops(T) + 2 * 4 * 2 * D * D
  decoder = 4 * (encoder_flops(T, injected=True) + vocabulary_flops(dense=dense))
  return 3 * pairs * (encoders + decoder)


def gathered_bytes(chips: int, parts: int) -> float:
  """What a chip receives in a step with fully sharded parameters.

  In each part of the batch: parameters (bfloat16) for the forward and for the backward pass; once
  more as much for the gradients (float32), of which each chip gets its share of the sum.
  """
  return parts * (2 + 2 + 4) * PARAMETERS * (chips - 1) / chips


def memory_bytes(chips: int, parts: int) -> float:
  """The largest passes over a chip's memory in a step, activations left out.

  Of the vocabulary projection, for each chunk of tokens, the kernel twice (bfloat16) and its
  gradient there and back (float32); of the update and of adding up gradients, all parameters.
  """
  chunks = 4 * BATCH * T / VOCABULARY_CHUNK / chips
  kernel = D * V
  update = (4 + 4 + 4 + parts * 3 * 4) * PARAMETERS / chips
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
  """What is known of each device."""
  head = ["", "TFLOP/s, bf16", "memory, GB", "GB/s", "link, GB/s", "$/h, assumed", "source"]
  rows = [
    [
      d.name,
      f"{d.flops / 1e12:.0f}",
      f"{d.memory / GB:.0f}",
      f"{d.bandwidth / GB:.0f}",
      f"{d.link / GB:.0f}",
      f"{d.price:.2f}",
      d.source,
    ]
    for d in DEVICES
  ]
  return _table(head, rows)


def training_table(mfu: float) -> str:
  """A run over 216 million pairs, once."""
  head = ["chips", "pairs/s", "products, s", "collectives, s", "memory, s", "step, s", "run", "$"]
  rows = []
  for name, chips, parts in TRAINING:
    device = BY_NAME[name]
    products = step_flops() / chips / device.flops / mfu
    collectives = gathered_bytes(chips, parts) / device.link
    passes = memory_bytes(chips, parts) / device.bandwidth
    step = max(products, collectives) + 0.5 * min(products, collectives)
    seconds = step * PAIRS / BATCH
    rows.append(
      [
        f"{chips} {name}",
        f"{BATCH / step:,.0f}",
        f"{products:.2f}",
        f"{collectives:.2f}",
        f"{passes:.2f}",
        f"{step:.2f}",
        _time(seconds),
        f"{seconds / 3600 * chips * device.price:,.0f}",
      ]
    )
  return _table(head, rows)


def search_table(mfu: float, search_mfu: float, tokens: int, disk: float) -> str:
  """Encoding and searching all of PAQ."""
  head = ["chips", "encode", "search: products", "search: disk", "vectors fit the memory", "$"]
  stored = QUESTIONS * D * 2
  rows = []
  for name, chips in SEARCH:
    device = BY_NAME[name]
    encode = QUESTIONS * encoder_flops(tokens) / chips / device.flops / mfu
    products = 2 * D * QUESTIONS * QUERIES / chips / device.flops / search_mfu
    read = stored / (disk * GB)
    fits = stored < 0.9 * chips * device.memory
    total = encode + max(products, read)
    rows.append(
      [
        f"{chips} {name}",
        _time(encode),
        _time(products),
        _time(read),
        "yes" if fits else "no: streamed",
        f"{total / 3600 * chips * device.price:.2f}",
      ]
    )
  return _table(head, rows)


def main() -> None:
  """Prints all tables."""
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("--mfu", type=float, default=0.4, help="share of the peak in training and encoding")
  add("--search_mfu", type=float, default=0.2, help="share of the peak in a search")
  add("--tokens", type=int, default=16, help="of a question, with padding")
  add("--disk", type=float, default=2.0, help="GB/s that vectors are read with")
  options = parser.parse_args()
  ours, dense = step_flops(), step_flops(dense=True)
  steps = PAIRS / BATCH
  print(f"Assumed:\n\n{ASSUMPTIONS.format(**vars(options))}\n")
  print(devices_table())
  print(
    f"\nA step: {ours:.3e} FLOPs, {ours / BATCH:.2e} a pair; of it the vocabulary projection "
    f"{12 * BATCH * vocabulary_flops(dense=False) / ours:.0%}. Written as in the paper: "
    f"{dense:.3e} ({dense / ours:.2f} times)."
  )
  print(f"216 million pairs: {steps:,.0f} steps, {ours * steps:.2e} FLOPs.\n")
  print(training_table(options.mfu))
  v3 = BY_NAME["TPU v3"]
  large = step_flops(8192, dense=True) * 100_000 / (128 * v3.flops * options.mfu)
  print(
    f"\nThe paper's largest ablation, 100,000 steps of 8,192 pairs with the dense projection, on "
    f"its 128 TPU v3 by the same reckoning: {_time(large)}.\n"
  )
  encode = QUESTIONS * encoder_flops(options.tokens)
  print(
    f"PAQ: {encode:.2e} FLOPs to encode, {2 * D * QUESTIONS * QUERIES:.2e} to compare with "
    f"{QUERIES:,} queries; {QUESTIONS * D * 2 / GB:.0f} GB of float16 vectors, "
    f"{QUERIES * D * 4 / GB:.2f} GB of queries.\n"
  )
  print(search_table(options.mfu, options.search_mfu, options.tokens, options.disk))


if __name__ == "__main__":
  main()
