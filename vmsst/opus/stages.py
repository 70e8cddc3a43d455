"""Stages of a build, in units of one file, bucket or shard: clean, merge, write.

`engines.run` does those whose result is missing, so that builds resume after interruption.

    cleaned = [stages.Clean(release, ...) for release in releases]      # one per file
    merged = [stages.Merge(bucket=i, inputs=cleaned, ...) for i in range(count)]
    shard = stages.Write(inputs=merged[:1], bounds=(("Europarl", 0, 2**63),), ...)
"""

import collections
import dataclasses
import functools
import hashlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vmsst import errors
from vmsst.data import dataset_shards, formats
from vmsst.jobs import atomic_files, base
from vmsst.opus import buckets, cleaning, decontamination, releases

READ, KEPT, HELD_OUT = "read", "kept", "held_out"
DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
REASONS = (*cleaning.REASONS, HELD_OUT, DUPLICATE, NEAR_DUPLICATE)
"""Why a pair is left out, in the order of the checks."""
FAULTS_KEPT = 20
"""Faults of a release that are kept with their places; all are counted."""
FORMAT = 2
"""Version of the stages; increase it if a stage makes other output from the same input."""


@dataclasses.dataclass(frozen=True)
class Clean(base.Unit):
  """Reads, normalizes and filters one release.

  Attributes:
    release: The release.
    cleaning: Rules for normalizing and filtering.
    held_out: File of the sentences to exclude (`EvaluationSentences.save`).
    held_out_digest: Hash of these sentences.
    buckets: Number of buckets of the language pair; a pair of texts is in bucket
      `key % buckets`, with the key of `cleaning.keys`.
    path: Output file.
  """

  release: releases.Release
  cleaning: cleaning.Cleaning
  held_out: str
  held_out_digest: str
  buckets: int
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return _digest(
      "clean",
      self.release.name,
      self.release.paths,
      self.release.identity,
      msgspec.structs.asdict(self.cleaning),
      self.held_out_digest,
      self.buckets,
    )

  def __str__(self) -> str:
    return " + ".join(self.release.paths)

  def make(self) -> dict[str, Any]:
    """Makes the file; returns counts by reason and by evaluation set, and faults."""
    counts: collections.Counter[str] = collections.Counter()
    by_set: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    faults: list[formats.Fault] = []
    clean = cleaning.Cleaner(self.cleaning, *self.release.pair)
    matching_sets = _held_out(self.held_out, self.held_out_digest).sets
    with buckets.writing(self.path, self.buckets) as writer:
      for row in releases.read(self.release):
        if isinstance(row, formats.Fault):
          kinds[row.what] += 1
          if len(faults) < FAULTS_KEPT:
            faults.append(row)
          continue
        counts[READ] += 1
        cleaned = clean(*row.texts)
        if isinstance(cleaned, str):
          counts[cleaned] += 1
          continue
        source, target = cleaned
        source_key, target_key, key = cleaning.keys(source, target)
        sets = {*matching_sets(source_key), *matching_sets(target_key)}
        if sets:
          counts[HELD_OUT] += 1
          by_set.update(sets)
          continue
        counts[KEPT] += 1
        writer.add(key, source.encode(), target.encode())
    # A copy hashes the files again; the release itself remembers their digest.
    if dataclasses.replace(self.release).identity != self.release.identity:
      raise errors.InputError("it has changed while it was read")
    return {"counts": counts, "held_out": by_set, "faults": faults, "fault_kinds": kinds}


@dataclasses.dataclass(frozen=True)
class Cleaned:
  """The output of `Clean` for later units: its file, its key and its corpus."""

  path: str
  key: str
  corpus: str


@dataclasses.dataclass(frozen=True)
class Merge(base.Unit):
  """Removes duplicates in one bucket of a language pair, and shuffles the rest.

  Keeps the first of several pairs with the same key: from the earlier input, then the earlier row.

  Attributes:
    inputs: The cleaned releases of the pair, in order of precedence.
    bucket: Number of the bucket.
    seed: Seed of the random order.
    path: Output file.
  """

  inputs: tuple[Cleaned, ...]
  bucket: int
  seed: int
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    inputs = [(merged.key, merged.corpus) for merged in self.inputs]
    return _digest("merge", inputs, self.bucket, self.seed)

  @property
  def corpora(self) -> tuple[str, ...]:
    """The corpora of the inputs; the tag of a row is the index of its corpus."""
    return tuple(dict.fromkeys(cleaned.corpus for cleaned in self.inputs))

  def make(self) -> dict[str, Any]:
    """Makes the file; returns counts by corpus: rows, duplicates, and kept rows."""
    corpora = self.corpora
    tables, tags = [buckets.CLEANED.empty_table()], [0]
    for unit in self.inputs:
      for table in buckets.read(unit.path, buckets.CLEANED, self.bucket):
        tables.append(table)
        tags.append(corpora.index(unit.corpus))
    tags_N = np.repeat(tags, [len(table) for table in tables])
    rows = pa.concat_tables([table.replace_schema_metadata() for table in tables])
    keys_N = rows["key"].to_numpy()
    texts = rows.select(["source", "target"])
    # np.unique returns the index of the first of equal keys.
    _, first_K, place_N = np.unique(keys_N, return_index=True, return_inverse=True)
    first_N = first_K[place_N]
    repeated_R = np.flatnonzero(first_N != np.arange(len(first_N)))
    same_2R = [
      pc.equal(side.take(repeated_R), side.take(first_N[repeated_R])).to_numpy()
      for side in texts.columns
    ]
    same_R = np.logical_and.reduce(same_2R)
    ranks_K = ranks(keys_N[first_K], tags_N[first_K], corpora, self.seed)
    order_K = np.lexsort((keys_N[first_K], ranks_K))
    ranks_K, kept_K = ranks_K[order_K], first_K[order_K]
    tags_K = tags_N[kept_K]
    merged = [ranks_K, tags_K.astype(np.uint16), *texts.take(kept_K).columns]
    buckets.write_table(self.path, pa.table(merged, buckets.MERGED))

    def of_corpus(tags: np.ndarray) -> list[int]:
      return np.bincount(tags, minlength=len(corpora)).tolist()

    columns = zip(
      corpora,
      of_corpus(tags_N),
      of_corpus(tags_N[repeated_R[same_R]]),
      of_corpus(tags_N[repeated_R[~same_R]]),
      of_corpus(tags_K),
      strict=True,
    )
    names = (READ, DUPLICATE, NEAR_DUPLICATE, KEPT)
    return {corpus: dict(zip(names, counts, strict=True)) for corpus, *counts in columns}


def ranks(keys_N: np.ndarray, tags_N: np.ndarray, corpora: Sequence[str], seed: int) -> np.ndarray:
  """Returns random numbers, uint64 [N], that depend only on seed, pair key and corpus."""
  secret = f"rank {seed}".encode()
  states = [hashlib.blake2b(name.encode(), digest_size=8, key=secret) for name in corpora]
  keys = keys_N.astype("<u8").tobytes()
  digests = bytearray()
  for row, tag in enumerate(tags_N.tolist()):
    state = states[tag].copy()
    state.update(keys[8 * row : 8 * row + 8])
    digests += state.digest()
  return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)


def load_ranks(unit: Merge) -> np.ndarray:
  """Returns the ranks of a merged bucket, uint64 [N]: ascending in each corpus, in their order."""
  rows = list(buckets.read(unit.path, buckets.MERGED, columns=["rank", "tag"]))
  ranks_N, tags_N = (
    np.concatenate([np.empty(0, kind), *(table[name].to_numpy() for table in rows)])
    for name, kind in (("rank", np.uint64), ("tag", np.uint16))
  )
  return ranks_N[np.argsort(tags_N, kind="stable")]


Bounds = tuple[tuple[str, int, int], ...]
"""Corpora, each with the first rank to take and the one after the last."""


@dataclasses.dataclass(frozen=True)
class Write(base.Unit):
  """Writes one shard of a split: rows of merged buckets, by rank.

  Attributes:
    inputs: The buckets.
    bounds: Ranks to take, by corpus. Rows of other corpora are left out.
    source_language: Code of the first side.
    target_language: Code of the second side.
    path: File to write.
  """

  inputs: tuple[Merge, ...]
  bounds: Bounds
  source_language: str
  target_language: str
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on, without the path."""
    inputs = [merged.key for merged in self.inputs]
    return _digest("write", inputs, self.bounds, self.source_language, self.target_language)

  def make(self) -> dict[str, Any]:
    """Makes the file; returns the number of rows, the bytes of the records, and the file hash."""
    examples = dataset_shards.Examples(self.source_language, self.target_language)
    rows = heapq.merge(*(self._rows(merged) for merged in self.inputs))
    written = (examples.example(corpus, source, target) for _, corpus, source, target in rows)
    with atomic_files.atomic_path(self.path) as partial:
      count, size = dataset_shards.write(partial, written)
      with partial.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256")
    return {"rows": count, "bytes": size, "sha256": sha256.hexdigest()}

  def _rows(self, merged: Merge) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    bounds = {corpus: (low, high) for corpus, low, high in self.bounds}
    corpora = [corpus.encode() for corpus in merged.corpora]
    # The last rank instead of the one after it, because 2**64 is not a uint64; 1 to 0 is empty.
    ranges = [bounds.get(corpus, (0, 0)) for corpus in merged.corpora]
    low_C = np.array([low if low < high else 1 for low, high in ranges], np.uint64)
    last_C = np.array([high - 1 if low < high else 0 for low, high in ranges], np.uint64)
    for rows in buckets.read(merged.path, buckets.MERGED):
      rank_N, tag_N = rows["rank"].to_numpy(), rows["tag"].to_numpy()
      if not len(rows) or rank_N[0] > last_C.max():
        return
      inside_N = np.flatnonzero((rank_N >= low_C[tag_N]) & (rank_N <= last_C[tag_N]))
      taken = rows.take(inside_N)
      yield from zip(
        taken["rank"].to_pylist(),
        (corpora[tag] for tag in tag_N[inside_N].tolist()),
        taken["source"].to_pylist(),
        taken["target"].to_pylist(),
        strict=True,
      )


@functools.lru_cache(maxsize=1)
def _held_out(path: str, digest: str) -> decontamination.EvaluationSentences:
  """Returns the sentences to exclude; a process loads them once."""
  del digest
  return decontamination.EvaluationSentences.load(path)


def _digest(*parts: object) -> str:
  return base.digest(FORMAT, *parts)
