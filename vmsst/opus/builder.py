"""Builds the TFDS dataset `opus_bitext`, with one configuration per recipe.

    builder.build("vmsst", "OPUS", "DATA", "TFDS")
    tfds.load("opus_bitext/vmsst", split="train_deu_eng", data_dir="TFDS")

TFDS and SeqIO read TFRecord files without this library.
"""

import json
import os
import pathlib
import shutil

import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming

from vmsst import errors, storage
from vmsst.data import dataset_shards
from vmsst.io import checksums
from vmsst.jobs import atomic_files, base, engines, work_folders
from vmsst.opus import card, decontamination, pipeline, recipes
from vmsst.opus import releases as releases_lib

VERSION = "1.0.0"
DATA_CARD = "DATA_CARD.md"


def build(
  recipe: str,
  releases: str,
  evaluation: str,
  output: str,
  *,
  work: str | None = None,
  engine: engines.Engine | None = None,
) -> str:
  """Builds a dataset unless it exists; returns its folder.

  An existing dataset must be undamaged, and that of the recipe, the releases and the evaluation
  sets. Folders of releases or evaluation sets that are absent are not compared.

  Args:
    recipe: Name of a recipe, or its YAML file.
    releases: Folder of OPUS releases.
    evaluation: Folder of evaluation sets, whose sentences are excluded.
    output: The `data_dir` of TFDS. In an object store, the dataset is uploaded when it is complete.
    work: Folder on disk for intermediate files, which are kept for other recipes; required if
      `output` is not on disk. None: a folder next to the dataset, which is removed at the end.
    engine: Where to do the work; see `vmsst.jobs`. None: one process per core.

  Folders may be in object stores.

  Raises:
    InputError: see `pipeline.build`; or the dataset exists, damaged or built from other inputs.
  """
  if work is not None:
    storage.check_local(work, "the folder of intermediate files (--work)")
  elif storage.is_url(output):
    raise errors.InputError(
      f"{output} is in an object store: give --work, a folder on a disk that all workers see"
    )
  loaded = recipes.load(recipe)
  root = storage.absolute(output).rstrip("/")
  url = f"{root}/opus_bitext/{loaded.name}/{VERSION}"
  target = storage.path(url)
  own_work = os.path.abspath(work or os.path.join(root, "opus_bitext_work", loaded.name))
  work_folder = work_folders.work_path(own_work, is_folder=True)
  if not work_folders.is_new(target):
    _check(target, loaded, releases, evaluation)
  else:
    folder = pathlib.Path(url)
    if storage.is_url(url):
      folder = pathlib.Path(work_folder, f"upload.{loaded.name}")
    if not work_folders.is_new(folder):  # A process was killed while it uploaded the dataset.
      _check(folder, loaded, releases, evaluation)
    else:
      report = pipeline.build(
        loaded,
        storage.absolute(releases),  # Workers may have another working directory.
        _held_out(evaluation),
        own_work,
        engine or engines.Local(os.cpu_count() or 1),
      )
      with work_folders.atomic_folder(folder) as partial:
        _write(report, partial)
      shutil.rmtree(report.folder)
    if storage.is_url(url):
      work_folders.upload(folder, url)
      shutil.rmtree(folder)
  if work is None:
    work_folders.clear(work_folder)
    for empty in (own_work, os.path.dirname(own_work)):  # Another recipe may be using the latter.
      work_folders.remove_if_empty(empty)
  return url


def _write(report: pipeline.Report, folder: pathlib.Path) -> None:
  """Moves the shards of a build to a folder, and describes them there for TFDS and for people."""
  infos = []
  for split, made in report.splits.items():
    for shard in made:
      shutil.move(shard["path"], folder)
    infos.append(
      tfds.core.SplitInfo(
        name=split,
        shard_lengths=[shard["rows"] for shard in made],
        num_bytes=sum(shard["bytes"] for shard in made),
      )
    )
  tfds.folder_dataset.write_metadata(
    data_dir=folder,
    features={name: tfds.features.Text() for name in dataset_shards.FEATURES},
    split_infos=infos,
    version=VERSION,
    filename_template=naming.ShardedFileTemplate(
      data_dir=folder,
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
      dataset_name="opus_bitext",
      filetype_suffix="tfrecord",
    ),
    check_data=False,
    description="Pairs of texts in two languages, from the corpora of OPUS (opus.nlpl.eu).",
    homepage="https://opus.nlpl.eu",
    metadata=tfds.core.MetadataDict(
      **report.inputs,
      configuration=report.configuration,
      content=report.content,
    ),
  )
  atomic_files.write_text(folder / DATA_CARD, card.text(report))


def _held_out(evaluation: str) -> decontamination.EvaluationSentences:
  from vmsst.evaluation import benchmarks, evaluation_texts

  texts = evaluation_texts.iter_texts(benchmarks.BENCHMARKS.values(), evaluation)
  return decontamination.EvaluationSentences.of(texts)


def _check(folder: storage.Path, recipe: recipes.Recipe, root: str, evaluation: str) -> None:
  """Raises InputError if a dataset is damaged, or was built from other inputs that are present."""
  with storage.explained(folder, "read"):
    try:
      metadata = json.loads((folder / "metadata.json").read_bytes())
    except (FileNotFoundError, ValueError):
      raise errors.InputError(f"{folder} is not a dataset; choose another output folder") from None
  if metadata.get("recipe") != recipe.digest:
    raise errors.InputError(
      f"{folder} was built by another recipe of that name; remove it, or rename the recipe"
    )
  shards = filter(dataset_shards.is_shard, storage.names(folder))
  content = base.digest({name: checksums.of_file(folder / name) for name in shards})
  if metadata.get("content") != content:
    raise errors.InputError(
      f"{folder} is damaged, or an older version built it: its shards are not the ones that it "
      "describes; remove this dataset to build it again"
    )
  changed = []
  if storage.exists(root):
    wanted = [release for release in releases_lib.scan(root)[0] if recipe.wants(release)]
    if metadata.get("releases") != pipeline.releases_digest(wanted):
      changed.append(f"the releases in {root}")
  if storage.exists(evaluation) and metadata.get("held_out") != _held_out(evaluation).digest:
    changed.append(f"the evaluation sets in {evaluation}")
  if changed:
    raise errors.InputError(
      f"{' and '.join(changed)} are not those that {folder} was built from; remove this dataset to "
      "build it again, or choose another output"
    )
