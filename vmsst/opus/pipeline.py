"""Makes the shards of a dataset from OPUS releases in three stages, and reports about them.

Nothing here imports TensorFlow. Memory does not grow with the data, except for the ranks: 8 bytes
per pair, which are memory-mapped.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.data import formats
from vmsst.jobs import atomic_files, base, engines, work_folders
from vmsst.opus import decontamination, recipes, stages
from vmsst.opus import releases as releases_lib

BUCKET_BYTES = 64 << 20
"""Approximate bytes of text in a bucket before cleaning, and in memory of a worker at a time."""
_COMPRESSION = 4  # Bytes of text per byte of a compressed file.
_COMPRESSED = (".zip", ".gz")


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of a build.

  Attributes:
    recipe: The recipe.
    root: Folder of the releases.
    releases: The releases that were used.
    left_out: Files below the folder that could not be used.
    cleaned: By release: counts by reason and by evaluation set, and faults (`stages.Clean.make`).
    merged: By language pair and corpus: numbers of rows, duplicates, and kept rows.
    taken: By language pair and corpus: numbers of pairs for training and for validation.
    goals: Targets of the recipe, and their results.
    held_out: Number of sentences by evaluation set.
    folder: Folder of the shards, without other files to keep.
    splits: By name of a split, its shards: path, rows, bytes, hash.
    inputs: Hashes of the recipe, the releases and the evaluation sentences.
    configuration: Hash of the inputs and of how they are processed.
  """

  recipe: recipes.Recipe
  root: str
  releases: Sequence[releases_lib.Release]
  left_out: Sequence[formats.Fault]
  cleaned: Mapping[str, Mapping[str, Any]]
  merged: Mapping[recipes.Cell, Mapping[str, int]]
  taken: Mapping[recipes.Cell, Sequence[int]]
  goals: Sequence[recipes.Goal]
  held_out: Mapping[str, int]
  folder: str
  splits: Mapping[str, Sequence[Mapping[str, Any]]]
  inputs: Mapping[str, str]
  configuration: str

  @property
  def content(self) -> str:
    """Hash of all shards: the same for the same data, however it was built."""
    shards = itertools.chain.from_iterable(self.splits.values())
    return base.digest({os.path.basename(shard["path"]): shard["sha256"] for shard in shards})


def build(
  recipe: recipes.Recipe,
  root: str,
  held: decontamination.EvaluationSentences,
  work: str,
  engine: engines.Engine,
) -> Report:
  """Makes the shards of a dataset; resumes an interrupted build.

  Args:
    recipe: The recipe.
    root: Folder of OPUS releases.
    held: Sentences to exclude.
    work: Folder for intermediate files. If other recipes use it later, they do not clean the same
      files again.
    engine: Where to do the units; see `vmsst.jobs`.

  Raises:
    InputError: no release is in the recipe, no pair is left, another build uses `work`, or a unit
      failed.
  """
  available, left_out = releases_lib.scan(root)
  wanted = [release for release in available if recipe.wants(release)]
  if not wanted:
    raise errors.InputError(
      f"{root}: recipe {recipe.name} uses none of the {len(available)} releases in this folder, "
      f"e.g. {', '.join(release.name for release in available[:5])}; add some of its corpora"
    )
  inputs = {"recipe": recipe.digest, "releases": releases_digest(wanted), "held_out": held.digest}
  configuration = base.digest(stages.FORMAT, inputs, BUCKET_BYTES)
  with work_folders.owned(work, is_folder=True):
    work = work_folders.work_path(work, is_folder=True)
    clean_units = _clean(recipe, wanted, held, work, engine)
    merge_units = _merge(recipe, clean_units, work, engine)
    merged, ranks = _ranks(clean_units, merge_units, work)
    cuts = recipes.plan(recipe, ranks)
    folder = os.path.join(work, f"shards.{configuration[:16]}")
    splits = _write(merge_units, ranks, cuts, os.path.join(folder, "opus_bitext"), engine)
  return Report(
    recipe=recipe,
    root=root,
    releases=wanted,
    left_out=left_out,
    cleaned={unit.release.name: base.result(unit) or {} for unit in clean_units},
    merged=merged,
    taken={cell: cuts[cell].counts(parts).sum(axis=0).tolist() for cell, parts in ranks.items()},
    goals=recipes.goals(recipe, ranks, cuts),
    held_out=held.counts,
    folder=folder,
    splits=splits,
    inputs=inputs,
    configuration=configuration,
  )


def releases_digest(releases: Sequence[releases_lib.Release]) -> str:
  """Returns a hash of releases, wherever they are."""
  return base.digest([(release.name, release.identity) for release in releases])


def _clean(
  recipe: recipes.Recipe,
  wanted: Sequence[releases_lib.Release],
  held: decontamination.EvaluationSentences,
  work: str,
  engine: engines.Engine,
) -> list[stages.Clean]:
  """Cleans the releases, the largest first, so that all workers finish at about the same time."""
  sentences = os.path.join(work, "held_out.npz")
  try:
    held.save(sentences)
  except OSError as error:
    raise errors.InputError(
      f"{sentences}: cannot be written: {error.strerror}; fix this and rerun the same command"
    ) from None
  sizes: collections.Counter[str] = collections.Counter()
  for release in wanted:
    sizes[recipe.pair_name(*release.pair)] += _text_bytes(release)
  units = [
    stages.Clean(
      release=release,
      cleaning=recipe.cleaning,
      held_out=sentences,
      held_out_digest=held.digest,
      # A power of two: a little more data rarely changes it, which would clean all files again.
      buckets=1
      << max(0, (sizes[recipe.pair_name(*release.pair)] - 1) // BUCKET_BYTES).bit_length(),
      path=os.path.join(work, "clean", f"{release.name}.parquet"),
    )
    for release in sorted(wanted, key=lambda release: (-_text_bytes(release), release.name))
  ]
  engines.run("clean", units, engine)
  return units


def _text_bytes(release: releases_lib.Release) -> int:
  """Returns an estimate of a release's bytes of text from its size on disk."""
  return release.size * (_COMPRESSION if release.paths[0].endswith(_COMPRESSED) else 1)


def _merge(
  recipe: recipes.Recipe, cleaned: Sequence[stages.Clean], work: str, engine: engines.Engine
) -> dict[str, list[stages.Merge]]:
  """Merges the cleaned releases; returns units by language pair, one per bucket."""
  ordered = sorted(cleaned, key=lambda unit: (recipe.order(unit.release.corpus), unit.release.name))
  pairs: dict[str, list[stages.Clean]] = {}
  for unit in ordered:
    pairs.setdefault(recipe.pair_name(*unit.release.pair), []).append(unit)
  units = {}
  for pair, members in sorted(pairs.items()):
    inputs = tuple(stages.Cleaned(unit.path, unit.key, unit.release.corpus) for unit in members)
    units[pair] = [
      stages.Merge(
        inputs=inputs,
        bucket=bucket,
        seed=recipe.seed,
        path=os.path.join(work, "merge", pair, f"{bucket:05d}.parquet"),
      )
      for bucket in range(members[0].buckets)
    ]
  engines.run("merge", [unit for members in units.values() for unit in members], engine)
  return units


def _ranks(
  cleaned: Sequence[stages.Clean], units: Mapping[str, Sequence[stages.Merge]], work: str
) -> tuple[dict[recipes.Cell, collections.Counter[str]], dict[recipes.Cell, list[np.ndarray]]]:
  """Returns counts, and ranks by bucket, of each language pair and corpus."""
  merged: dict[recipes.Cell, collections.Counter[str]] = {}
  places: dict[recipes.Cell, list[tuple[int, int]]] = {}
  path = os.path.join(work, "ranks")
  offset = 0
  # One memory-mapped file: a process may not open one file for each bucket.
  with atomic_files.atomic_file(path) as stream:
    for pair, members in units.items():
      for unit in members:
        counts = base.result(unit) or {}
        stream.write(stages.load_ranks(unit).tobytes())
        for corpus in unit.corpora:
          kept = counts[corpus][stages.KEPT]
          places.setdefault((pair, corpus), []).append((offset, offset + kept))
          merged.setdefault((pair, corpus), collections.Counter()).update(counts[corpus])
          offset += kept
  if not offset:
    raise errors.InputError(
      f"no pair of texts is left: {_reasons(cleaned)}; relax the rules of the recipe"
    )
  all_ranks_N = np.asarray(np.memmap(path, np.uint64, mode="r"))
  return merged, {
    cell: [all_ranks_N[start:end] for start, end in members] for cell, members in places.items()
  }


def _reasons(cleaned: Sequence[stages.Clean]) -> str:
  """Returns why pairs were left out, with counts and the first fault."""
  counts: collections.Counter[str] = collections.Counter()
  faults = []
  for unit in cleaned:
    made = base.result(unit) or {"counts": {}, "faults": []}
    counts.update(made["counts"])
    faults += made["faults"]
  reasons = [f"{counts[name]:,} {name}" for name in (stages.READ, *stages.REASONS) if counts[name]]
  return ", ".join([*reasons, *(f"{location}: {what}" for location, what in faults[:1])])


def _write(
  units: Mapping[str, Sequence[stages.Merge]],
  ranks: Mapping[recipes.Cell, Sequence[np.ndarray]],
  cuts: Mapping[recipes.Cell, recipes.Cut],
  prefix: str,
  engine: engines.Engine,
) -> dict[str, list[dict[str, Any]]]:
  """Writes all shards; returns their paths, sizes and hashes by split."""
  planned: dict[str, list[stages.Write]] = {}
  for pair, members in units.items():
    source, target = pair.split("_")
    for split, bounds, inputs in _splits(pair, members, ranks, cuts):
      planned[split] = [
        stages.Write(
          inputs=merged,
          bounds=bounds,
          source_language=source,
          target_language=target,
          path=f"{prefix}-{split}.tfrecord-{number:05d}-of-{len(inputs):05d}",
        )
        for number, merged in enumerate(inputs)
      ]
  engines.run("write", [unit for members in planned.values() for unit in members], engine)
  return {
    split: [{"path": unit.path, **(base.result(unit) or {})} for unit in members]
    for split, members in sorted(planned.items())
  }


def _splits(
  pair: str,
  units: Sequence[stages.Merge],
  ranks: Mapping[recipes.Cell, Sequence[np.ndarray]],
  cuts: Mapping[recipes.Cell, recipes.Cut],
) -> Iterator[tuple[str, stages.Bounds, list[tuple[stages.Merge, ...]]]]:
  """Yields the names of a pair's splits, their ranks, and the buckets of each shard.

  Every shard has rows, because readers do not expect empty ones.
  """
  corpora = units[0].corpora
  cut_by_corpus = {corpus: cuts[pair, corpus] for corpus in corpora}
  counts = [cut.counts(ranks[pair, corpus]) for corpus, cut in cut_by_corpus.items()]
  train_rows_B, validation_rows_B = np.sum(counts, axis=0).T
  if train_rows_B.any():
    bounds = tuple((corpus, cut.validation, cut.train) for corpus, cut in cut_by_corpus.items())
    yield f"train_{pair}", bounds, [(units[i],) for i in np.flatnonzero(train_rows_B).tolist()]
  if validation_rows_B.any():
    bounds = tuple((corpus, 0, cut.validation) for corpus, cut in cut_by_corpus.items())
    # Validation data is small: one shard.
    yield f"validation_{pair}", bounds, [tuple(units)]
