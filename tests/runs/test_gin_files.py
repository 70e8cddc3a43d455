"""The shipped gin files, parsed and bound as `t5x train` does."""

import json
import math
import re

import commands
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst import languages
from vmsst.opus import recipes

ROOT = vmsst.gin_dir()
RUN_FILES = sorted(
  path.relative_to(ROOT).as_posix()
  for pattern in ("*.gin", "ablations/*.gin", "ems/*.gin", "soft/*.gin")
  for path in ROOT.glob(pattern)
)
# Files to put after the run file, for `t5x eval` and `t5x infer`: function, required macros,
# checkpoint and name of the folder of results.
FOLLOWING = {
  "runs/eval.gin": ("evaluate", [], "/run", "eval"),
  "runs/infer.gin": ("infer", ["CHECKPOINT_PATH"], "/run/x", "infer"),
}

# Run files, and settings for meshes/24l.gin that split the batch as in docs/scaling.md, into
# microbatches or slices.
ON_MESH = {
  ("vmsst_24l.gin", "NUM_MICROBATCHES = 8"): (8, 1),
  ("vmsst_contrastive_24l.gin", ""): (1, 1),
  ("contrastive_24l.gin", "EMBEDDING_SLICES = 16"): (1, 16),
}
# Number of shards of the token table and of a feed-forward kernel, by a mesh file and a binding.
CUT = {
  ("", ""): (1, 1),
  ("meshes/fully_sharded.gin", ""): (8, 8),
  ("", "NUM_PARTITIONS = 2"): (2, 2),
  ("meshes/vocabulary_sharded.gin", ""): (2, 1),
  ("meshes/fully_sharded.gin", "NUM_PARTITIONS = 2"): (8, 8),
}
# Pairs of Table 11 of the soft contrastive paper by the bindings that select them, as soft/me5.gin
# documents.
ONE_PAIR = {
  f"OPUS_LANGUAGES = ('en', '{code}')": pairs
  for code, pairs in {"ko": 66_800, "fr": 153_900, "ja": 78_500, "ru": 133_800}.items()
}
FROM_ENGLISH = sum(ONE_PAIR.values())
ALL_PAIRS = FROM_ENGLISH + 61_200 + 57_600 + 58_700 + 76_800 + 132_900 + 76_600
TABLE_11 = {**ONE_PAIR, "": FROM_ENGLISH, "OPUS_PIVOTS = None": ALL_PAIRS}
# Model and options of each file of the soft contrastive paper.
_SOFT = {"cross_weight": 0.1, "scale": 10, "row_normalized": False, "monolingual": False}
SOFT_FILES = {
  **{
    file: ("SoftContrastiveModel", _SOFT | {"labels": "priority", "monolingual": True})
    for file in ("soft_contrastive", "soft/me5")
  },
  **{
    f"soft/{labels}": ("SoftContrastiveModel", _SOFT | {"labels": labels})
    for labels in ("priority", "average", "hard")
  },
  "soft/mse": ("DistillationModel", {}),
  "soft/muse": ("ContrastiveModel", {"scale": 10, "share_negatives": False}),
}
# Tables 2, 4 and 5: a file, and the binding that selects its pairs.
SOFT_ROWS = [("soft/me5", binding) for binding in TABLE_11] + [
  (file, "" if file == "soft_contrastive" else next(iter(ONE_PAIR)))
  for file in SOFT_FILES
  if file != "soft/me5"
]

# Statements of the papers: section, files, and numbers by their key in the report. test_recipes.py
# checks the numbers of the recipes.
_OBJECTIVES = ("bitranslation", "contrastive", "vmsst", "vmsst_contrastive")
_6L, _24L, _MT5 = ([f"{x}_{y}.gin" for x in _OBJECTIVES] for y in ("6l", "24l", "24l_mt5"))
_VMSST = [*_6L, *_24L, *_MT5]
_DROPOUT = [x for x in _VMSST if x.startswith("contrastive")] + ["vmsst_contrastive_24l.gin"]
_EMS = ["ems.gin", *(x for x in RUN_FILES if x.startswith("ems/"))]
_EMS_BERT = [x for x in _EMS if not x.endswith("_encoder.gin")]
_FROM_ME5 = [f"soft/{x}.gin" for x in ("me5", "priority", "average", "hard", "mse", "muse")]
_ADAM = {
  "numbers/optax.add_decayed_weights.weight_decay": 1e-5,
  "numbers/t5x.utils.create_learning_rate_scheduler.base_learning_rate": 3e-4,
  "numbers/t5x.utils.create_learning_rate_scheduler.warmup_steps": 10_000,
}
STATED = [
  ("VMSST, section 6.4: training", _VMSST, {
    "batch_size": 2048, "steps": 100_000, "max_length": 32, "lengths/inputs": 32,
    "lengths/targets": 32}),
  ("VMSST, section 6.4: peak learning rate, warm-up and decay", _VMSST, {
    "rates/1": 2.5e-7, "rates/2000": 5e-4, "rates/3999": 3999 / 4e6, "rates/4000": 1e-3,
    "rates/4001": 1e-3 * math.sqrt(4000 / 4001), "rates/16000": 5e-4, "rates/100000": 2e-4,
    "optimizer": "Adafactor", "trainer": "Trainer", "opus/OPUS_CONFIG": "vmsst"}),
  ("VMSST, section 4: dot products", [x for x in _VMSST if "contrastive" in x], {
    "options/similarity": "dot"}),
  *((f"VMSST: {x}", [f"{x}_6l.gin", f"{x}_24l.gin"], {"model": name}) for x, name in zip(
    _OBJECTIVES, ("BitranslationModel", "ContrastiveModel", "VmsstModel", "VmsstContrastiveModel"),
    strict=True)),
  ("VMSST, section 6.4: hidden states and embeddings", _VMSST, {
    "network/emb_dim": 1024, "latent_dim": 1024}),
  ("VMSST, section 6.4: layers", _6L, {"network/num_encoder_layers": 6}),
  ("VMSST, section 6.4: layers", [*_24L, *_MT5], {"network/num_encoder_layers": 24}),
  ("VMSST, section 6.4: mT5's vocabulary, padded as in mT5", _VMSST, {
    "network/vocab_size": 250_112}),
  ("VMSST, section 6.4: mT5-Large", _VMSST, {
    "network/num_heads": 16, "network/head_dim": 64, "network/mlp_dim": 2816}),
  ("VMSST, section 6.4: dropout", _DROPOUT, {"network/dropout_rate": 0.1}),
  ("VMSST, section 6.4: no dropout", [x for x in _VMSST if x not in _DROPOUT], {
    "network/dropout_rate": 0}),
  ("VMSST, section 6.4: annealing of the KL term", [x for x in _VMSST if x[0] == "v"], {
    "options/kl_anneal_steps": 1_000_000}),
  ("VMSST, section 6.4: lambda", ["vmsst_6l.gin", "vmsst_24l.gin"], {"options/elbo_weight": 0.1}),
  ("VMSST, section 6.4: lambda", ["vmsst_24l_mt5.gin"], {"options/elbo_weight": 0.025}),
  ("VMSST, section 6.4: lambda", ["vmsst_contrastive_6l.gin", "vmsst_contrastive_24l_mt5.gin"], {
    "options/vmsst_weight": 0.0005}),
  ("VMSST, section 6.4: lambda", ["vmsst_contrastive_24l.gin"], {"options/vmsst_weight": 0.001}),
  ("EMS, Table II and section IV-C: Adam", _EMS, _ADAM),
  ("EMS, section IV-C: 4 GPUs with 152 pairs, 120 tokens", _EMS, {
    "batch_size": 4 * 152, "max_length": 120, "lengths/inputs": 120, "lengths/targets": 120}),
  ("EMS, section IV-D: 3 epochs", _EMS, {"steps": 733_176}),
  ("EMS, section IV-C: encoder", _EMS_BERT, {
    "network/num_layers": 6, "network/num_heads": 16, "network/emb_dim": 1024,
    "network/mlp_dim": 4096, "network/max_positions": 120}),
  ("EMS, Table II: dropout", _EMS_BERT, {"network/dropout_rate": 0.1}),
  ("EMS, section IV-C: d, d_vcb, d_la, d_cntrs", ["ems.gin"], {
    "latent_dim": 1024, "network/vocab_size": 60_000, "options/language_dim": 128,
    "options/projection_dim": 128}),
  ("EMS, equation 12, without the variants of section V", ["ems.gin"], {
    "model": "EmsModel", "opus/OPUS_CONFIG": "ems", "network/activation": "swish",
    "options/xtr": True, "options/contrastive": True, "options/share_embedding": False,
    "options/num_languages": languages.NUM_LANGUAGES, "options/xtr_layer_norm": False,
    "options/masking": "none", "options/count_repeats": True, "options/negative_groups": 1,
    "options/scale": 1 / 0.1, "options/margin": 0,
    "rates/1": 3e-8, "rates/4000": 1.2e-4, "rates/16000": 3e-4, "rates/100000": 3e-4}),
  ("EMS, release: cosine schedule of 15 epochs, negatives of one of 4 GPUs", ["ems/release.gin"], {
    "numbers/vmsst.train.schedules.multiple.factor": 15 / 3, "steps": 733_176,
    "options/negative_groups": 4}),
  ("EMS, Table III: languages of SBERT-distill", ["soft/mse_50_languages.gin"], {
    "opus/OPUS_LANGUAGES": 50}),
  ("EMS, footnote 16, Table III and section IV-D: LASER, 17 epochs of 223M", ["laser.gin"], {
    "network/vocab_size": 50_000, "steps": pytest.approx(17 * 223e6 / 4096, rel=1e-3)}),
  ("DESIGN.md, section 6: LASER", ["laser.gin"], {
    "network/num_layers": 5, "network/hidden_dim": 512}),
  ("Soft contrastive, release: learning rate (5e-3 in section 4.1) and weight decay", _FROM_ME5, {
    "numbers/optax.linear_schedule.init_value": 3e-5, "numbers/optax.linear_schedule.end_value": 0,
    "numbers/optax.adamw.weight_decay": 0}),
  ("Soft contrastive, section 5.2: hard negatives", ["soft/muse.gin", "hard_negatives.gin"], {
    "lengths/negatives/0": 3, "numbers/vmsst.tasks.bitext.files.negatives": 3}),
]  # fmt: skip

# Differences between variants and their base files: ablations of VMSST (Tables 4, 6 and 7) and
# variants of EMS (Table XIV, section V).
_FOUR = languages.own_groups(["es", "en", "ar", "tr"])
_NO_LANGUAGE = {"encoder_language_embedding": False}
_NO_XTR, _NO_MLP, _AMS = {"xtr": False}, {"projection_dim": None}, {"margin": 0.3}
VARIANTS = {
  "ablations/vmsst_24l_factorized": {"factorized": True},
  "ablations/vmsst_24l_4_encoders": {
    "language_encoder_groups": languages.random_groups(4, codes=recipes.language_codes("vmsst"))
  },
  "ablations/vmsst_24l_12_decoder_layers": {"num_decoder_layers": 12},
  "ablations/vmsst_24l_1_decoder_layer": {"num_decoder_layers": 1},
  "ablations/vmsst_24l_no_kl": {"kl_weight": 0},
  "ablations/vmsst_24l_single_encoder": {"single_encoder": True},
  "ablations/vmsst_24l_no_encoder_language": _NO_LANGUAGE,
  "ablations/vmsst_24l_no_decoder_language": {"decoder_language_embedding": False},
  "ablations/vmsst_6l_full": {
    **dict.fromkeys(("language_encoder_groups", "decoder_groups"), _FOUR),
    **_NO_LANGUAGE,
    "decoder_language_embedding": False,
    "opus": {"OPUS_CONFIG": "vmsst", "OPUS_LANGUAGES": ["es", "en", "ar", "tr"]},
  },
  "ems/no_language_token": {"language_dim": None},
  "ems/no_contrastive": {"contrastive": False},
  "ems/no_xtr": _NO_XTR,
  "ems/no_mlp": _NO_MLP,
  "ems/shared_embedding": {"share_embedding": True},
  "ems/ugt": {"masking": "ugt", "mask_id": 2},
  "ems/labse_vanilla": {**_NO_XTR, **_NO_MLP, **_AMS},
  "ems/labse_mlp": {**_NO_XTR, **_AMS},
  "ems/labse_joint": _AMS,
  "ems/language_table": {"num_languages": 60_000},
  "ems/release": {
    "masking": "input",
    "mask_id": 2,
    "xtr_layer_norm": True,
    "count_repeats": False,
    "negative_groups": 4,
    **dict.fromkeys(("rates", "end"), ...),  # any other value
  },
  "ems/t5_encoder": {"network": ...},
  "ems/lstm_encoder": {"network": ...},
}


def row_name(file, binding):
  """Returns the name of a gin file that selects the language pairs of a row."""
  return re.sub(r"\W+", "_", f"row {file} {binding}") + ".gin"


STARTS_FROM = tiny_encoders.encoder(
  tiny_encoders.bert_config(), 8, head=False, pooling="cls", normalize=True
)


# Parses several files and writes reports to the first argument. Fake functions have the parameters
# of the real functions and record the values from gin.
_PARSE = """
import dataclasses, inspect, json, sys
import gin
from flax.linen.partitioning import logical_to_mesh_axes
from vmsst.train import partitioning
from vmsst.train import eval as eval_lib, gin_utils, infer as infer_lib
from vmsst.train import train as train_lib
from vmsst.data import loader
from vmsst.opus import recipes

given = {}

# Counts the pairs of the languages of a run, as in Table 11 of the soft contrastive paper.
class Table11:
  def num_input_examples(self, split):
    def macro(name):
      return gin.config._CONFIG[(name, "gin.macro")]["value"]
    languages = macro("OPUS_LANGUAGES") or ("en", "fr", "ja", "ko", "ru")
    pivots = macro("OPUS_PIVOTS") or languages
    codes = {"en": "eng", "fr": "fra", "ja": "jpn", "ko": "kor", "ru": "rus"}
    own = {codes.get(x, x) for x in languages}
    of_pivots = {codes.get(x, x) for x in pivots}
    table = {tuple(k.split("_")): n for k, n in recipes.load("soft_contrastive").expected.items()}
    return sum(n for k, n in table.items() if own.issuperset(k) and of_pivots.intersection(k))

loader.seqio = type("Seqio", (), {"get_mixture_or_task": lambda name: Table11()})
def stand_in(function):
  def keep(**arguments):
    given[function.__name__] = arguments
  keep.__name__ = function.__name__
  keep.__signature__ = inspect.signature(function)
  globals()[function.__name__] = keep
  gin.register(keep, "__main__")
for function in (train_lib.train, eval_lib.evaluate, infer_lib.infer):
  stand_in(function)

def macros():
  defined = {scope for scope, selector in gin.config._CONFIG if selector == "gin.macro"}
  used = {
    name
    for reference in gin.config.iterate_references(gin.config._CONFIG)
    if reference.selector == "gin.macro"
    for name in reference.scopes
  }
  return defined, used

def parse(file, bindings=(), finalize=True, follow=()):
  gin.clear_config()
  gin_utils.parse_gin_flags(sys.argv[2:3], [file, *follow], bindings, finalize_config=finalize)

# Numbers that are bound to parameters of functions, such as "optax.adam.b1", by these names.
def numbers():
  found = {}
  for (scope, selector), bound in gin.config._CONFIG.items():
    for name, value in bound.items():
      while getattr(value, "selector", None) == "gin.macro":
        value = gin.config._CONFIG[("/".join(value.scopes), "gin.macro")]["value"]
      if not scope and isinstance(value, (int, float)):
        found[f"{selector}.{name}"] = value
  return found

def bindings_of(value):
  return gin.get_bindings(f"{value.__module__.rpartition('.')[2]}.{value.__name__}")

def bind(defined, required, follow=(), extra=()):
  # No data here: task names replace what would register them.
  named = {"MIXTURE_OR_TASK_NAME", "EVAL_TASK", "VOCABULARY_PATH"} & defined
  of_encoder = {x for x in named if gin.config._CONFIG[(x, "gin.macro")]["value"] == ""}
  values = dict.fromkeys((*required, *named - of_encoder), "placeholder")
  own = dict.fromkeys(("INITIAL_CHECKPOINT_PATH", "ENCODER"), sys.argv[4])
  values |= {name: own[name] for name in own.keys() & values.keys()}
  bindings = [*(f"{name} = {value!r}" for name, value in values.items()), *filter(None, extra)]
  gin_utils.parse_gin_flags([], follow, bindings)  # in addition to what is parsed
  gin.get_configurable(train)()

def report(file):
  parse(file, finalize=False)
  defined, used = macros()
  found = {
    "required": gin_utils.unset_macros(),
    "unused": sorted(defined - used),
    "undefined": sorted(used - defined),
  }
  if found["undefined"]:
    return found
  bind(defined, found["required"])
  model, data = given["train"]["model"], given["train"]["train_dataset_cfg"]
  schedule = bindings_of(given["train"]["trainer_cls"])["learning_rate_fn"]
  steps = given["train"]["total_steps"]
  stopping = given["train"]["actions"].get("INFER_EVAL", ())[1:]
  batches = given["train"]["get_dataset_fn"]
  return found | {
    "numbers": numbers(),
    "steps": steps,
    "get_dataset_fn": {"name": batches.__name__, **bindings_of(batches)},
    "batch_size": data.batch_size,
    "periods": [given["train"]["eval_period"], given["train"]["checkpoint_cfg"].save.period],
    "stopping": [[*x.metric, x.mode, x.patience] for x in stopping],
    "lengths": data.task_feature_lengths,
    "network": dataclasses.asdict(model.network.config),
    "latent_dim": model.network.latent_dim,
    "options": {
      **{
        name: getattr(model, name, None)
        for name in (
          "elbo_weight", "kl_anneal_steps", "vmsst_weight", "similarity", "kl_weight",
          "elbo_sample", "language_mean", "scale", "margin", "masking", "mask_id",
          "count_repeats", "negative_groups", "labels", "monolingual", "cross_weight",
          "row_normalized", "share_negatives",
        )
      },
      **{
        field.name: getattr(model.network, field.name)
        for field in dataclasses.fields(model.network)
        if field.name not in ("config", "parent", "name")
      },
    },
    "model": type(model).__name__,
    "trainer": given["train"]["trainer_cls"].__name__,
    "max_length": model.max_length,
    "opus": {
      name: bound["value"]
      for (name, selector), bound in gin.config._CONFIG.items()
      if selector == "gin.macro" and name.startswith("OPUS_") and bound["value"] is not None
    },
    "optimizer": type(model.optimizer_def).__name__,
    "rates": {step: float(schedule(step)) for step in (1, 2000, 3999, 4000, 4001, 16000, 100000)},
  }

def end(file):
  # The rate at the end of a run of other steps, relative to the rate in the middle.
  steps = 543210
  parse(file, finalize=False)
  bind(macros()[0], gin_utils.unset_macros(), extra=[f"TRAIN_STEPS = {steps}"])
  schedule = bindings_of(given["train"]["trainer_cls"])["learning_rate_fn"]
  return float(schedule(steps) / schedule(steps // 2))

def follow(function, file):
  # As after the quickstart: the folders of results and of checkpoints.
  bindings = ["EVAL_TASK = 'placeholder'", "MODEL_DIR = '/run'"]
  parse("quickstart.gin", bindings, finalize=False, follow=[file])
  defined, used = macros()
  required = gin_utils.unset_macros()
  parse("quickstart.gin", [*bindings, *(f"{name} = '/run/x'" for name in required)], follow=[file])
  gin.get_configurable(globals()[function])()
  bound = given[function]
  return {
    "required": required,
    "unused": sorted(defined - used),
    "output_dir": bound["output_dir"],
    "checkpoint": bound["restore_checkpoint_cfg"].path,
    "task": bound["dataset_cfg"].mixture_or_task_name,
    "model": type(bound["model"]).__name__,
  }

def on_mesh(file, binding):
  parse(file, finalize=False)
  bind(macros()[0], gin_utils.unset_macros(), ["meshes/24l.gin"], [binding])
  model, parts = given["train"]["model"], gin.query_parameter("%NUM_MICROBATCHES") or 1
  model.check_microbatches(parts)
  return {
    "microbatches": parts,
    "slices": getattr(model, "embedding_slices", 1),
    "scan_layers": model.network.config.scan_layers,
  }

def shards(mesh, binding):
  parse("quickstart.gin", filter(None, [binding]), False, filter(None, [mesh]))
  partitioner = gin.get_configurable(partitioning.PjitPartitioner)()
  with partitioner.context():
    specs = [logical_to_mesh_axes(axes) for axes in (("vocab", "embed"), ("mlp", "embed"))]
  placed = [x.devices_indices_map((400, 32)).values() for x in partitioner.shardings(specs)]
  return [len(set(map(str, indices))) for indices in placed]

following = json.loads(sys.argv[3])
reports = {"on_mesh": {f"{x} {y}": on_mesh(x, y) for x, y in json.loads(sys.argv[5])}}
reports["shards"] = [shards(*mesh) for mesh in json.loads(sys.argv[6])]
reports |= {file: report(file) for file in sys.argv[7:]}
for file in sys.argv[7:]:
  if not reports[file]["undefined"]:
    reports[file]["end"] = end(file)
reports |= {file: follow(function, file) for file, (function, *_) in following.items()}
with open(sys.argv[1], "w") as stream:
  json.dump(reports, stream, default=dataclasses.asdict)
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
  """Parses all files; returns a report per file."""
  folder = tmp_path_factory.mktemp("gin_files")
  extra = {
    "own_files.gin": "include 'vmsst_24l_mt5.gin'\ninclude 'data/files.gin'\n",
    "own_student.gin": "".join(
      f"include '{file}'\n" for file in ("soft/me5.gin", "data/files.gin", "eval/files.gin")
    ),
    **{row_name(*row): f"include '{row[0]}.gin'\n{row[1]}\n" for row in SOFT_ROWS},
  }
  for name, text in extra.items():
    (folder / name).write_text(text)
  files = [*RUN_FILES, *(folder / name for name in extra)]
  output = folder / "reports.json"
  start = tiny_encoders.save_run(folder / "import", tiny_encoders.model_of(STARTS_FROM))
  start = start / "checkpoint_0"
  arguments = (json.dumps(FOLLOWING), start, json.dumps([*ON_MESH]), json.dumps([*CUT]))
  commands.script(_PARSE, output, ROOT, *arguments, *files, cwd=folder, devices=8)
  found = json.loads(output.read_text())
  return {name.removeprefix(f"{folder}/"): report for name, report in found.items()}


# Sizes for 2 cores that are in no paper.
SMALL = re.compile(r"finetune|contrastive_short|.*_small")
# The papers sample batches at random, from all pairs or from one language pair.
OF_ONE_PAIR = re.compile(r"hard_negatives|soft_contrastive|soft/.*")


def test_macros_of_run_files_are_used_and_defined_and_headers_list_required_ones(reports):
  for file in RUN_FILES:
    report = reports[file]
    assert report["unused"] == report["undefined"] == [], file
    assert report["steps"] > 0, file
    header = re.match(r"(?:#.*\n)+", (ROOT / file).read_text(encoding="utf-8")).group()
    required = set(report["required"])
    assert required or "# Required: nothing.\n" in header, file
    assert required <= set(re.findall(r"[A-Z_]+", header.partition("Required:")[2])), file
    name = file.removesuffix(".gin")
    assert report["get_dataset_fn"] == {
      "name": "get_batches",
      "group_by_length": SMALL.fullmatch(name) is not None,
      "one_language_pair": OF_ONE_PAIR.fullmatch(name) is not None,
    }, file


def test_schedules_end_with_the_run_or_never(reports):
  for file in RUN_FILES:
    ratio = reports[file]["end"]
    wanted = (0, 1, 1 / math.sqrt(2))  # the last of rsqrt_decay
    assert file == "ems/release.gin" or any(ratio == pytest.approx(x, abs=0.02) for x in wanted)


def test_files_for_eval_infer_meshes_and_own_data_follow_a_run_file(reports):
  for file, (_, required, checkpoint, output) in FOLLOWING.items():
    expected = {"required": required, "checkpoint": checkpoint, "output_dir": f"/run/{output}"}
    expected |= {"task": "placeholder", "model": "VmsstModel"}
    assert reports[file] | expected == reports[file]
  for (file, binding), parts in ON_MESH.items():
    found = reports["on_mesh"][f"{file} {binding}"]
    assert found == {"microbatches": parts[0], "slices": parts[1], "scan_layers": True}
  plain, own = reports["vmsst_24l_mt5.gin"], reports["own_files.gin"]
  assert set(own["required"]) == {*plain["required"], "PATTERNS"}
  student = reports["own_student.gin"]
  wanted = {*reports["soft/me5.gin"]["required"], "PATTERNS", "VALIDATION_PATTERNS"}
  assert set(student["required"]) == wanted - {"OPUS_DATA_DIR", "TEACHER_VECTORS"}
  for report in (own, student):
    assert report["unused"] == report["undefined"] == []


@pytest.mark.parametrize(("where", "files", "values"), STATED)
def test_files_have_the_numbers_that_the_papers_state(reports, where, files, values):
  for file in files:
    for place, value in values.items():
      found = reports[file]
      for key in place.split("/"):
        found = found[int(key)] if isinstance(found, list) else found[key]
      found = len(found) if isinstance(found, list) else found
      assert found == (pytest.approx(value) if isinstance(value, float) else value), (file, place)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_changes_only_the_settings_in_its_name(reports, name):
  kind, base = re.fullmatch(r"(ablations/|ems/)(.*)", name).groups()
  base = base[: base.find("l_") + 1] if kind == "ablations/" else "ems"
  plain, found = (
    {**reports[f"{x}.gin"], **reports[f"{x}.gin"]["options"], "options": None, "numbers": None}
    for x in (base, name)
  )
  changes = {key: json.loads(json.dumps(x)) for key, x in VARIANTS[name].items() if x is not ...}
  assert {key for key in plain if found[key] != plain[key]} == {*VARIANTS[name]}
  assert found | changes == found


@pytest.mark.parametrize(("file", "binding"), SOFT_ROWS)
def test_a_row_of_the_soft_contrastive_paper_has_the_numbers_of_section_4_1(reports, file, binding):
  report, pairs = reports[row_name(file, binding)], TABLE_11[binding]
  assert report["unused"] == report["undefined"] == []
  assert report["batch_size"] == 32
  assert report["steps"] == math.ceil(30 * pairs / 32)
  assert report["periods"] == [math.ceil(pairs / 32)] * 2
  # Patience 3: training stops after three epochs without improvement (footnote 2).
  assert report["stopping"] == [["placeholder", "accuracy/average", "max", 3]]
  network = {"num_layers": 12, "num_heads": 12, "emb_dim": 768, "mlp_dim": 3072}
  assert report["network"] | network == report["network"]
  for step, rate in report["rates"].items():
    expected = 3e-5 * max(0, 1 - int(step) / report["steps"])
    assert rate == pytest.approx(expected, rel=1e-3, abs=1e-10), step
  model, options = SOFT_FILES[file]
  assert report["model"] == model
  if file == "soft_contrastive":
    assert report["opus"] == {"OPUS_CONFIG": "soft_contrastive", "OPUS_PIVOTS": ["en"]}
    vectors = {"teacher_inputs": 768, "teacher_targets": 768}
    assert report["lengths"] | vectors == report["lengths"]
  else:  # starts from mE5, with its pooling, normalization and vocabulary
    assert "INITIAL_CHECKPOINT_PATH" in report["required"]
    assert "VOCABULARY_PATH" not in report["required"]
    options = {**options, "pooling": "cls", "normalize": True, "head": False}
  assert report["options"] | options == report["options"]


def test_each_mesh_shards_the_expected_parameters(reports):
  assert [*map(tuple, reports["shards"])] == [*CUT.values()]


@pytest.mark.slow
def test_meshes_do_not_change_the_losses(tmp_path):
  def losses(name, devices, *options):
    run = tmp_path / name
    options += ("--gin.WARMUP_STEPS=1", "--gin.train.stats_period=1", f"--gin.MODEL_DIR='{run}'")
    options += ("--gin.EVAL_PERIOD=0", "--gin.train.run_eval_before_training=False")
    done = commands.t5x("train", *commands.TINY, *options, cwd=tmp_path, devices=devices)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (run / "train" / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]

  alone = losses("alone", 1)
  for number, (mesh, binding) in enumerate(CUT):
    options = [f"--gin_file={mesh}"] * bool(mesh) + [f"--gin_bindings={binding}"] * bool(binding)
    found = losses(str(number), 8, *options)
    np.testing.assert_allclose(found, alone, rtol=1e-5, err_msg=f"{mesh} {binding}")
