"""Builds the TFDS dataset `opus_bitext`, with one configuration per recipe.

    builder.build("vmsst", "OPUS", "DATA", "TFDS")
    tfds.load("opus_bitext/vmsst", split="train_deu_eng", data_dir="TFDS")

The dataset consists of TFRecord files, which TFDS and SeqIO can read without this library. Memory
use does not grow with the amount of data.
"""

import collections
import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming

from vmsst import errors, storage
from vmsst.data import dataset_shards
from vmsst.evaluation import benchmarks
from vmsst.io import input_files, manifest
from vmsst.jobs import engines, job
from vmsst.opus import card, cleaning, recipes, stages
from vmsst.opus import releases as releases_lib

VERSION = "1.0.0"
DATA_CARD = "DATA_CARD.md"
BUCKET_BYTES = 64 << 20
"""Approximate bytes of text per bucket before cleaning. A worker loads one bucket at a time."""
_DATASET = "opus_bitext"
_INFO = "dataset_info.json"  # Written last. TFDS treats a folder with this file as complete.
_COMPRESSION = 4  # Estimated bytes of text per compressed byte.


def build(
  recipe: str,
  releases: str,
  evaluation: str,
  output: str,
  *,
  work: str | None = None,
  engine: engines.Engine | None = None,
) -> str:
  """Builds a dataset or resumes an interrupted build. Returns the dataset's folder.

  Args:
    recipe: Name of a recipe in the package, or path of a recipe's YAML file.
    releases: Folder with OPUS releases.
    evaluation: Folder with evaluation sets. Their sentences are excluded from the dataset.
    output: TFDS's `data_dir`.
    work: Folder on disk in which to build the dataset before it is copied to `output` (default:
      build in `output`). Required if `output` is in an object store.
    engine: Runs the stages (default: one process per core).

  All folders except `work` may be in object stores.

  Raises:
    InputError: If the recipe uses none of the releases, no pair passes cleaning, a stage fails, an
      earlier build in `output` used different inputs, or another process is building the dataset.
  """
  if work is None and storage.is_url(output):
    raise errors.InputError(
      f"{output} is in an object store; set --work to a folder on a disk that all workers share"
    )
  loaded = recipes.load(recipe)
  root = storage.absolute(releases)  # A worker's working directory may differ.
  available, left_out = releases_lib.scan(root)
  recipe_releases = [release for release in available if loaded.wants(release)]
  if not recipe_releases:
    raise errors.InputError(
      f"{root}: recipe {loaded.name} uses none of the {len(available)} releases in this folder "
      f"({', '.join(x.name for x in available[:5])} ...); add releases that the recipe uses"
    )
  texts = benchmarks.held_out_texts(benchmarks.BENCHMARKS.values(), evaluation)
  held_out = cleaning.EvaluationSentences.from_texts(texts)
  identities = [(release.name, input_files.sha256(release.path)) for release in recipe_releases]
  settings: dict[str, Any] = {
    "inputs": {
      "recipe": {"name": loaded.name, "digest": loaded.digest},
      "releases": {"name": root, "digest": manifest.digest(identities)},
      "evaluation sets": {"name": storage.absolute(evaluation), "digest": held_out.digest},
    },
    "options": {"format": stages.FORMAT, "bucket_bytes": BUCKET_BYTES},
  }
  subfolder = f"{_DATASET}/{loaded.name}/{VERSION}"
  engine = engine or engines.Local(os.cpu_count() or 1)
  with job.Job(f"{storage.absolute(output).rstrip('/')}/{subfolder}", **settings) as dataset:
    if dataset.finished:
      return dataset.folder
    if work is None:
      _build(dataset, loaded, root, recipe_releases, left_out, held_out, engine)
      return dataset.folder
    storage.check_local(work, "the folder to build in (--work)")
    with job.Job(os.path.join(work, subfolder), **settings) as local:
      if not local.finished:
        _build(local, loaded, root, recipe_releases, left_out, held_out, engine)
      names = storage.names(local.folder) - {manifest.NAME, storage.UNFINISHED}
      for name in sorted(names, key=lambda name: (name == _INFO, name)):
        if dataset.done(name) is None:
          with dataset.part(name) as (path, _):
            shutil.copyfile(local.path(name), path)
    dataset.finish()
    shutil.rmtree(local.folder)
  return dataset.folder


def _build(
  dataset: job.Job,
  recipe: recipes.Recipe,
  root: str,
  releases: Sequence[releases_lib.Release],
  left_out: Sequence[Any],
  held_out: cleaning.EvaluationSentences,
  engine: engines.Engine,
) -> None:
  """Writes the shards in three stages (see `stages`), then TFDS's metadata and the data card."""
  workdir = storage.UNFINISHED
  held_out_file = f"{workdir}/held_out.npz"
  dataset.run("held out", held_out.save, [job.Task(held_out_file)])
  # For each release, stage 1 writes one file with cleaned rows. The stage starts with the largest
  # releases, so that all workers finish at about the same time.
  sizes: collections.Counter[str] = collections.Counter()
  for release in releases:
    sizes[recipe.pair_name(*release.pair)] += _text_bytes(release)
  largest_first = sorted(releases, key=lambda release: (-_text_bytes(release), release.name))
  buckets = {pair: 1 << max(0, (n - 1) // BUCKET_BYTES).bit_length() for pair, n in sizes.items()}
  clean_files = {release.name: f"{workdir}/clean/{release.name}.parquet" for release in releases}
  held_out_source = dataset.path(held_out_file), held_out.digest
  clean_tasks = [
    job.Task(
      clean_files[release.name],
      (release, recipe.cleaning, held_out_source, buckets[recipe.pair_name(*release.pair)]),
      title=release.path,
    )
    for release in largest_first
  ]
  cleaned = dataset.run("clean", stages.clean, clean_tasks, engine)
  cleaned_by_release = {
    release.name: facts for release, facts in zip(largest_first, cleaned, strict=True)
  }

  # For each language pair, stage 2 writes one file per bucket. The rows in each file are
  # deduplicated and shuffled.
  files: dict[str, list[stages.CleanFile]] = {pair: [] for pair in sorted(sizes)}
  for release in sorted(releases, key=lambda x: (recipe.order(x.corpus), x.name)):
    clean_file = dataset.path(clean_files[release.name]), release.corpus
    files[recipe.pair_name(*release.pair)].append(clean_file)
  merge_tasks = {
    pair: [
      job.Task(f"{workdir}/merge/{pair}/{bucket:05d}.parquet", (members, bucket, recipe.seed))
      for bucket in range(buckets[pair])
    ]
    for pair, members in files.items()
  }
  flat = [task for tasks in merge_tasks.values() for task in tasks]
  merge_facts = iter(dataset.run("merge", stages.merge, flat, engine))

  # Each row has a pseudo-random rank. The ranks determine which rows are selected for the dataset.
  # All ranks are written to one file, so that memory use does not grow with the amount of data.
  merged: dict[recipes.Cell, collections.Counter[str]] = {}
  spans: dict[recipes.Cell, list[slice]] = {}
  offset = 0
  with tempfile.TemporaryFile(dir=dataset.folder) as stream:
    for pair, pair_tasks in merge_tasks.items():
      for bucket_task in pair_tasks:
        stream.write(stages.load_ranks(dataset.path(bucket_task.name)).tobytes())
        for corpus, counts in next(merge_facts).items():
          merged.setdefault((pair, corpus), collections.Counter()).update(counts)
          end = offset + counts[stages.KEPT]
          spans.setdefault((pair, corpus), []).append(slice(offset, end))
          offset = end
    if not offset:
      total: collections.Counter[str] = collections.Counter()
      for facts in cleaned:
        total.update({**facts["counts"], **facts["fault_kinds"]})
      raise errors.InputError(
        f"no text pair is left after cleaning: {dict(total)}; relax the recipe's rules"
      )
    stream.flush()
    ranks_N = np.asarray(np.memmap(stream, np.uint64, mode="r"))
  ranks = {cell: [ranks_N[span] for span in members] for cell, members in spans.items()}
  cuts = recipes.plan(recipe, ranks)

  # Stage 3 writes the shards. A training shard contains rows from one bucket, and a validation
  # shard contains rows from all buckets of a language pair. Empty shards are not written, because
  # readers do not expect them.
  pair_counts = {cell: cuts[cell].counts(arrays) for cell, arrays in ranks.items()}
  splits: dict[str, list[job.Task]] = {}
  for pair in files:
    corpora = stages.corpora(files[pair])
    paths = [dataset.path(bucket.name) for bucket in merge_tasks[pair]]
    train_B, validation_B = np.sum([pair_counts[pair, corpus] for corpus in corpora], axis=0).T
    shards = [(f"train_{pair}", [paths[i]]) for i in np.flatnonzero(train_B).tolist()]
    shards += [(f"validation_{pair}", paths)] if validation_B.any() else []
    count = collections.Counter(split for split, _ in shards)
    for split, inputs in shards:
      bounds = {
        corpus: (cut.validation, cut.train) if split.startswith("train") else (0, cut.validation)
        for corpus, cut in ((corpus, cuts[pair, corpus]) for corpus in corpora)
      }
      number = len(splits.setdefault(split, []))
      name = f"{_DATASET}-{split}.tfrecord-{number:05d}-of-{count[split]:05d}"
      arguments = (inputs, corpora, bounds, tuple(pair.split("_")))
      splits[split].append(job.Task(name, arguments))
  flat = [shard for shards in splits.values() for shard in shards]
  shard_facts = iter(dataset.run("write", stages.write, flat, engine))
  facts_by_split = {split: [next(shard_facts) for _ in shards] for split, shards in splits.items()}
  report = card.Report(
    recipe=recipe,
    root=root,
    releases=releases,
    left_out=left_out,
    cleaned=cleaned_by_release,
    merged=merged,
    selected={cell: counts_B2.sum(axis=0).tolist() for cell, counts_B2 in pair_counts.items()},
    goals=recipes.goals(recipe, ranks, cuts),
    held_out=held_out.counts,
    splits=dict(sorted(facts_by_split.items())),
  )
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    _describe(report, pathlib.Path(folder))
    for name in sorted(os.listdir(folder), key=lambda name: (name == _INFO, name)):
      with dataset.part(name) as (path, _):
        shutil.copyfile(os.path.join(folder, name), path)
  dataset.finish()


def _text_bytes(release: releases_lib.Release) -> int:
  """Estimates how many bytes of text a release contains, from its size on disk."""
  return release.size * (_COMPRESSION if release.path.endswith((".zip", ".gz")) else 1)


def _describe(report: card.Report, folder: pathlib.Path) -> None:
  """Writes the data card and TFDS's metadata files to a folder."""
  # TFDS derives the dataset name and the split names from shard file names.
  stand_ins = [folder / f"{_DATASET}-{split}.tfrecord-00000-of-00001" for split in report.splits]
  for shard in stand_ins:
    shard.touch()
  tfds.folder_dataset.write_metadata(
    data_dir=folder,
    features={name: tfds.features.Text() for name in dataset_shards.FEATURES},
    split_infos=[
      tfds.core.SplitInfo(
        name=split,
        shard_lengths=[shard["rows"] for shard in shards],
        num_bytes=sum(shard["bytes"] for shard in shards),
      )
      for split, shards in report.splits.items()
    ],
    version=VERSION,
    filename_template=naming.ShardedFileTemplate(
      data_dir=folder,
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
      dataset_name=_DATASET,
      filetype_suffix="tfrecord",
    ),
    check_data=False,
    description="Pairs of texts in two languages, from OPUS corpora (opus.nlpl.eu).",
    homepage="https://opus.nlpl.eu",
  )
  for shard in stand_ins:
    shard.unlink()
  (folder / DATA_CARD).write_text(card.text(report), encoding="utf-8")
