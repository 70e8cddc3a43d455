"""The TFDS dataset `opus_bitext`, with one configuration per recipe.

    vmsst data build --recipe vmsst --input OPUS --held-out DATA --output TFDS

    builder = OpusBitext(config="vmsst", data_dir="TFDS", releases="OPUS", held_out="DATA")
    builder.download_and_prepare()
    tfds.load("opus_bitext/vmsst", split="train_deu_eng", data_dir="TFDS")

A built dataset can be read without this module. TFDS commands can build it too, from a folder with
the subfolders `opus` and `evaluation`:

    tfds build opus_bitext/vmsst --imports=vmsst.tasks.opus.builder --manual_dir=FOLDER
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder

from vmsst import errors
from vmsst.bitext import dataset_shards
from vmsst.files import atomic_files, storage, work_folders
from vmsst.tasks.opus import card, decontamination, pipeline, recipes, shards
from vmsst.units import engines, local

DATA_CARD = "DATA_CARD.md"


@dataclasses.dataclass(eq=False)
class OpusConfig(tfds.core.BuilderConfig):
  """The configuration of a recipe.

  Attributes:
    recipe: Name or file of the recipe; "": the name of the configuration.
  """

  recipe: str = ""


class OpusBitext(dataset_builder.FileReaderBuilder):
  """Pairs of texts from OPUS releases, without duplicates and without evaluation sentences.

  Args:
    releases: Folder of OPUS releases; None: `opus` in the `manual_dir` of TFDS.
    held_out: Folder of evaluation sets; None: `evaluation` in the `manual_dir` of TFDS.
    work: Folder for intermediate files, which are kept for other recipes. None: a folder next to
      the dataset, which is removed at the end.
    engine: Where to do the work; see `vmsst.units`. None: one process per core.
    bucket_bytes: See `pipeline.build`.
    **kwargs: See `tfds.core.DatasetBuilder`.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = {"1.0.0": "First."}  # noqa: RUF012 (declared as in TFDS)
  BUILDER_CONFIGS = [  # noqa: RUF012
    OpusConfig(name=name, description=recipes.load(name).description) for name in recipes.names()
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "opus: OPUS releases, from `vmsst data download`. evaluation: evaluation sets, whose sentences "
    "are excluded from training."
  )

  url_infos = None  # Checksums of downloads; this builder has no downloads.

  def __init__(
    self,
    *,
    releases: str | None = None,
    held_out: str | None = None,
    work: str | None = None,
    engine: engines.Engine | None = None,
    bucket_bytes: int = pipeline.BUCKET_BYTES,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self._releases = releases
    self._held_out = held_out
    self._work = work
    self._engine = engine
    self._bucket_bytes = bucket_bytes

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="Pairs of texts in two languages, from the corpora of OPUS (opus.nlpl.eu).",
      features=tfds.features.FeaturesDict({name: tfds.features.Text() for name in shards.FEATURES}),
      homepage="https://opus.nlpl.eu",
      metadata=tfds.core.MetadataDict(),
    )

  def _download_and_prepare(
    self,
    dl_manager: tfds.download.DownloadManager,
    download_config: tfds.download.DownloadConfig | None = None,
  ) -> None:
    """Writes shards and data card into `self.data_dir`, a folder that TFDS renames at the end."""
    file_format = self.info.file_format.value
    if file_format not in dataset_shards.FORMATS:
      raise errors.InputError(
        f"file format {file_format} is not supported; use {' or '.join(dataset_shards.FORMATS)}"
      )
    recipe = recipes.load(self.builder_config.recipe or self.builder_config.name)
    work = self._work or self._own_work(recipe.name)
    report = pipeline.build(
      recipe,
      self._releases or os.fspath(dl_manager.manual_dir / "opus"),
      _evaluation_sentences(self._held_out or os.fspath(dl_manager.manual_dir / "evaluation")),
      work,
      self._engine or local.Local(os.cpu_count() or 1),
      name=self.name,
      bucket_bytes=self._bucket_bytes,
      file_format=file_format,
    )
    self._write(report)
    if self._work is None:
      self._remove_work(recipe.name)

  def _own_work(self, recipe: str) -> str:
    """Returns the default work folder."""
    return os.path.join(self._data_dir_root, f"{self.name}_work", recipe)

  def remove_remains(self, recipe: str) -> None:
    """Removes the intermediate files of this build, and of killed builds, of the dataset."""
    done = pathlib.Path(self.data_dir)
    for left in done.parent.glob(f"incomplete.*_{done.name}"):
      shutil.rmtree(left, ignore_errors=True)
    self._remove_work(recipe)

  def _remove_work(self, recipe: str) -> None:
    work = self._own_work(recipe)
    work_folders.clear(work_folders.path_of(work, is_folder=True))
    for folder in (work, os.path.dirname(work)):  # Another configuration may be using the latter.
      work_folders.remove_if_empty(folder)

  def _write(self, report: pipeline.Report) -> None:
    folder = pathlib.Path(self.data_dir)
    infos = []
    for split, made in report.splits.items():
      for shard in made:
        shutil.move(shard["path"], folder / os.path.basename(shard["path"]))
      infos.append(
        tfds.core.SplitInfo(
          name=split,
          shard_lengths=[shard["rows"] for shard in made],
          num_bytes=sum(shard["bytes"] for shard in made),
          filename_template=self._get_filename_template(split_name=split),
        )
      )
    shutil.rmtree(report.folder)
    self.info.set_splits(tfds.core.splits.SplitDict(infos))
    self.info.metadata.update(
      recipe=report.recipe.digest, configuration=report.configuration, content=report.content
    )
    with atomic_files.atomic_file(os.fspath(folder / DATA_CARD)) as stream:
      stream.write(card.text(report).encode())


def _evaluation_sentences(root: str) -> decontamination.EvaluationSentences:
  from vmsst.evaluation import benchmarks, evaluation_texts

  return decontamination.EvaluationSentences.of(
    evaluation_texts.iter_texts(benchmarks.BENCHMARKS.values(), root)
  )


def build(
  recipe: str,
  releases: str,
  evaluation: str,
  output: str,
  *,
  work: str | None = None,
  engine: engines.Engine | None = None,
  file_format: str = dataset_shards.FORMATS[0],
) -> str:
  """Builds a dataset unless it exists; returns its folder.

  Args:
    recipe: Name of a recipe, or its YAML file.
    releases: Folder of OPUS releases.
    evaluation: Folder of evaluation sets, whose sentences are excluded.
    output: The `data_dir` of TFDS. In an object store, the dataset is uploaded when it is complete.
    work: See `OpusBitext`. On disk, and required if `output` is not.
    engine: See `OpusBitext`.
    file_format: Format of the shards, one of `dataset_shards.FORMATS`.

  Folders may be in object stores.

  Raises:
    InputError: see `pipeline.build`; or another recipe has the same name; or the dataset exists in
      another format.
  """
  if work is not None:
    storage.check_local(work, "the folder of intermediate files (--work)")
  if storage.is_url(output):
    return _build_in_store(
      recipe, releases, evaluation, output, work=work, engine=engine, file_format=file_format
    )
  loaded = recipes.load(recipe)
  config: str | OpusConfig = loaded.name
  if recipe not in recipes.names():
    if loaded.name in recipes.names():
      raise errors.InputError(
        f"{recipe}: name: {loaded.name} is a recipe of the package; choose another name"
      )
    config = OpusConfig(name=loaded.name, description=loaded.description, recipe=recipe)
  try:
    builder = OpusBitext(
      config=config,
      data_dir=os.path.abspath(output),
      releases=storage.absolute(releases),  # Workers may have another working directory.
      held_out=evaluation,
      work=None if work is None else os.path.abspath(work),
      engine=engine,
      file_format=file_format,
    )
  except ValueError as error:  # TFDS found it in another format.
    raise errors.InputError(
      f"{output}: the dataset {OpusBitext.name}/{loaded.name} cannot be of format {file_format}: "
      f"{error}; choose another format or output folder"
    ) from None
  if builder.is_prepared():
    _check_recipe(builder.data_dir, builder.info.metadata, loaded)
    builder.remove_remains(loaded.name)
    return builder.data_dir
  with _no_new_metadata(pathlib.Path(builder.data_dir).parents[1]):
    builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
  builder.remove_remains(loaded.name)
  return builder.data_dir


def _build_in_store(
  recipe: str, releases: str, evaluation: str, output: str, *, work: str | None, **options: Any
) -> str:
  """Builds a dataset on disk, uploads it and removes it from the disk; returns its URL."""
  if work is None:
    raise errors.InputError(
      f"{output} is in an object store: give --work, a folder on a disk that all workers see"
    )
  loaded = recipes.load(recipe)
  url = f"{output.rstrip('/')}/{OpusBitext.name}/{loaded.name}/{OpusBitext.VERSION}"
  if not work_folders.is_new(storage.path(url)):
    with storage.explained(url, "read"), storage.open_binary(f"{url}/metadata.json") as stream:
      metadata = json.load(stream)
    _check_recipe(url, metadata, loaded)
    return url
  local = f"{work_folders.path_of(work, is_folder=True)}/upload"
  folder = build(recipe, releases, evaluation, local, work=work, **options)
  work_folders.upload(pathlib.Path(folder), url)
  shutil.rmtree(local)
  return url


def _check_recipe(place: str, metadata: Mapping[str, Any], recipe: recipes.Recipe) -> None:
  """Raises InputError if a dataset was built by another recipe."""
  if metadata.get("recipe") != recipe.digest:
    raise errors.InputError(
      f"{place} was built by another recipe of that name; remove it, or rename the recipe"
    )


@contextlib.contextmanager
def _no_new_metadata(folder: pathlib.Path) -> Iterator[None]:
  """Removes the metadata that TFDS writes to a new dataset's folder before a build that fails."""
  existed = folder.exists()
  try:
    yield
  except BaseException:
    if not existed:
      shutil.rmtree(folder / ".config", ignore_errors=True)
      with contextlib.suppress(OSError):  # not empty
        folder.rmdir()
    raise
