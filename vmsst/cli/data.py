"""`vmsst vocab` and `vmsst data`: download and prepare data."""

import functools
import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from vmsst import errors, storage
from vmsst.cli.command import (
  Argument,
  Batches,
  Command,
  Encoder,
  Field,
  GpuWorkers,
  InputFile,
  Language,
  OutputFile,
  OutputFolder,
  Positive,
  Role,
  Workers,
  file_to_write,
)

Name = Annotated[str, Argument("NAME")]
Pattern = Annotated[str, Argument("PATTERN", role="input")]  # a file, or a pattern for several
Source = Annotated[str, Argument("FOLDER", role="input")]  # a folder that the builder checks


def train_vocabulary(
  *,
  input: list[Pattern],
  output: OutputFile,
  size: int = 32_000,
  model_type: Literal["unigram", "bpe"] = "unigram",
  character_coverage: float = 0.9995,
  byte_fallback: bool = False,
  lowercase: bool = False,
  pretokenize: bool = False,
  max_sentences: Positive | None = None,
  languages: tuple[Language, Language] | None = None,
) -> None:
  """Train a SentencePiece vocabulary on bitext or text files.

  Args:
    input: Bitext files (as in training) or .txt files. Quote patterns.
    output: Model file to write.
    size: Number of pieces.
    model_type: SentencePiece algorithm.
    character_coverage: Share of the text's characters that the vocabulary covers.
    byte_fallback: Encode uncovered characters as bytes.
    lowercase: Lowercase the text first.
    pretokenize: Split the text into words by the rules of its language, before --lowercase.
    max_sentences: Maximum number of sentences, sampled at random (default: all).
    languages: Languages of the bitext (default: from the file names).
  """
  options = {name: x for name, x in locals().items() if name not in ("input", "output")}
  from vmsst.data import vocabularies
  from vmsst.jobs import outputs

  with outputs.atomic_path(output) as path:
    counts = vocabularies.train_vocabulary(input, path, **options)
  for name, count in counts.items():
    print(f"{count:>10,} sentences  {name}")
  print(f"{output}: {size:,} {model_type} pieces (0 padding, 1 EOS, 2 unknown)")
  for option in ("lowercase", "pretokenize"):
    if options[option]:
      print(f"Use this vocabulary with SentencePieceVocabulary.{option} = True.")


def embed_bitext(
  encoder: Encoder,
  output: OutputFolder,
  patterns: list[Pattern],
  *,
  languages: tuple[Language, Language] | None = None,
  batch_size: int = 128,
  refresh: bool = False,
) -> None:
  """Embed bitext files with a teacher, for distillation into a student.

  Args:
    output: Output folder. Finished files are skipped.
    patterns: Bitext files, as in training. Quote patterns.
    languages: Languages of the bitext (default: from the file names).
    batch_size: Sentences per batch.
    refresh: Replace vectors from a different encoder or an older version of this encoder.
  """
  from vmsst.data import readers, tables
  from vmsst.encoder import encoding, loading
  from vmsst.jobs import job

  files = readers.find_bitext(patterns, languages)
  names = list(map(tables.vectors_name, files))
  for name in names:
    if names.count(name) > 1:
      raise errors.InputError(
        f"two inputs would write {os.path.join(output, name)}; use another folder for one input"
      )
  path, teacher = loading.open_encoder(encoder)
  inputs = {"encoder": encoding.identity(teacher, path)}
  with job.Job(output, inputs=inputs, replace=refresh) as embed_job:
    for name, file in zip(names, files, strict=True):
      digest = readers.digest(file)
      facts = embed_job.done(name, digest)
      if facts is None:
        with embed_job.part(name, digest) as (vectors_path, facts):
          facts["bitext"] = digest
          facts |= encoding.write_pair_vectors(
            teacher,
            readers.read_pairs(file),
            vectors_path,
            count=sum(1 for _ in readers.read_pairs(file)),
            languages=[*map(readers.language_code, (file.source, file.target))],
            title=str(file),
            batch_size=batch_size,
          )
      pairs, width = facts["lines"], facts["dimension"]
      print(f"{embed_job.path(name)}: vectors of {pairs:,} pairs, width {width}")
    embed_job.finish()


def mine_negatives(
  encoder: Encoder,
  pairs: Pattern,
  output: OutputFile,
  *,
  corpus: InputFile | None = None,
  field: Field | None = None,
  teacher: Encoder | None = None,
  count: Positive = 3,
  range_min: int = 0,
  range_max: Positive | None = None,
  relative_margin: float | None = None,
  roles: tuple[Role, Role] | None = None,
  languages: tuple[Language, Language] | None = None,
  batch_size: Positive = 128,
) -> None:
  """Mine hard negatives: documents near a query that do not answer it, or wrong translations.

  Args:
    pairs: File with queries and their positives, as for `vmsst finetune`.
    output: Output file for `vmsst finetune`, in JSON Lines with one pair and its negatives per
      line. If its name ends in .tsv, the file has one column per text and no scores; `t5x train`
      reads it too.
    corpus: Documents to search, one per line (default: the positives of all pairs).
    field: Column or key of the documents in the corpus (default: column 1 of .tsv files, or column
      2 if column 1 contains numbers; the key "text" in .jsonl files; otherwise the whole line).
    teacher: Second encoder. The margin uses its cosines, and the output contains them for `vmsst
      finetune --objective kl_divergence` (default: the margin uses the cosines of ENCODER).
    count: Maximum number of hard negatives per pair.
    range_min: Number of nearest documents to skip, not counting positives.
    range_max: Number of nearest documents to consider, not counting positives (default: RANGE_MIN +
      COUNT, or with a margin RANGE_MIN + 10 * COUNT).
    relative_margin: Exclude documents with a score above (1 - X) times the score of the positive.
      Such documents are often unlabeled positives. 0.05 is a common value (default: no limit).
    roles: Roles of the two texts in a pair (query or document), which select their prompts
      (default: query and document if --corpus is given; otherwise the roles that the column names
      suggest; otherwise no roles, so both texts get the encoder's default prompt).
    languages: Languages of the two texts, for encoders that require them.
    batch_size: Texts per batch.
  """
  names = ("count", "range_min", "range_max", "relative_margin")
  options = {name: value for name, value in locals().items() if name in names}
  from vmsst import finetuning
  from vmsst.cli import vector_jobs
  from vmsst.encoder import encoding, loading
  from vmsst.io import manifest, text_files
  from vmsst.jobs import job, outputs
  from vmsst.mining import hard_negative_mining as mining
  from vmsst.search import vector_store

  if corpus:
    field = field or text_files.default_field(corpus)
    text_files.check_not_empty(corpus)
    roles = roles or ("query", "document")
  with errors.requires("train", "reading pairs"):
    (pair_set,) = finetuning.open_sets(
      pairs, None, roles=roles, languages=languages or ("und", "und")
    )
  name, model = loading.open_encoder(encoder)
  inputs: dict[str, Any] = {
    "encoder": encoding.identity(model, name),
    "pairs": {"name": pairs, "digest": pair_set.digest},
  }
  documents, teacher_model = None, None
  if corpus:
    inputs["corpus"] = vector_store.fingerprint(corpus)
    documents = text_files.read_texts(corpus, field, inputs["corpus"]["digest"])
  if teacher:
    name, teacher_model = loading.open_encoder(teacher)
    inputs["teacher"] = encoding.identity(teacher_model, name)
  options |= {"roles": pair_set.roles, "languages": languages or (None, None)}
  settings = {**options, "field": field}
  with (
    file_to_write(output) as output_path,
    job.Job(output_path, inputs=inputs, options=settings, is_folder=False) as mine_job,
  ):
    numbers = itertools.count()

    def encode(model: Any, texts: list[str], **encode_options: Any) -> Any:
      name, key = f"vectors-{next(numbers):06d}.npy", manifest.digest(texts)
      compute = functools.partial(encoding.encode, model, texts, **encode_options)
      return vector_jobs.cached_array(mine_job, name, key, compute)

    options |= {"teacher": teacher_model, "batch_size": batch_size, "encode": encode}
    examples = mining.hard_negatives(model, pair_set.table.pairs(), documents, **options)
    total = 0
    with mine_job.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      for example in examples:
        query, (positive,), negatives, *_ = example.values()
        line = json.dumps(example, ensure_ascii=False)
        if output.endswith(".tsv"):
          texts = [query, positive, *negatives, *[""] * (count - len(negatives))]
          line = "\t".join(text.translate(text_files.SEPARATORS) for text in texts)
        stream.write(f"{line}\n")
        total += len(negatives)
  if output != outputs.STANDARD:
    print(f"{output}: {total:,} hard negatives of {len(pair_set.table):,} pairs")


def build(
  *,
  recipe: InputFile,
  input: Source,
  held_out: Source,
  output: OutputFolder,
  work: Annotated[str, Argument("FOLDER")] | None = None,
  workers: Workers,
) -> None:
  """Build a training dataset from OPUS releases, without duplicates or evaluation sentences.

  Args:
    recipe: vmsst, ems, soft_contrastive or the path of a YAML file.
    input: Folder of OPUS releases.
    held_out: Folder of evaluation sets. Their sentences are excluded.
    output: TFDS data folder for the dataset opus_bitext/NAME.
    work: Local folder for unfinished files (default: --output). Required if --output is in an
      object store.
  """
  with errors.requires("opus", "building a dataset"):
    from vmsst.opus import builder

  folder = builder.build(recipe, input, held_out, output, work=work, engine=workers.create())
  print(f"{folder}: see {builder.DATA_CARD} for a description")


def clean(
  files: list[Pattern],
  out: OutputFolder,
  *,
  languages: tuple[Language, Language] | None = None,
  held_out: Sequence[Annotated[str, Argument("PATH", role="input")]] = (),
  max_characters: Positive = 1000,
  max_ratio: float = 3.0,
  min_script_share: float = 0.5,
  encoder: Encoder | None = None,
  min_cosine: float | None = None,
  min_margin: float | None = None,
  encoding: Batches,
  workers: GpuWorkers,
) -> None:
  """Clean bitext files: drop bad pairs, duplicates and evaluation sentences.

  Args:
    files: Bitext files, as in training. Quote patterns.
    out: Output folder for one TSV file per language pair, such as deu-eng.tsv.
    languages: Languages of the bitext; "und und" accepts any languages (default: from the file
      names).
    held_out: Text files with one sentence per line (in .tsv files, one per column), or `vmsst eval`
      data folders. Pairs with a sentence from these files are removed.
    max_characters: Maximum length of a text.
    max_ratio: Maximum length ratio of the two texts. The longer text may exceed this limit by 20
      characters.
    min_script_share: Minimum share of a text's letters that belong to a script of its language.
    encoder: Encoder for --min-cosine and --min-margin.
    min_cosine: Minimum cosine of a pair.
    min_margin: Minimum margin of a pair, such as 1.02 (the ratio margin with 4 neighbors, computed
      among the pairs that pass all other filters).
  """
  from vmsst.cli import vector_jobs
  from vmsst.data import readers
  from vmsst.io import manifest
  from vmsst.jobs import job
  from vmsst.opus import cleaning, file_cleaning
  from vmsst.search import vector_store

  if bool(encoder) == (min_cosine is None and min_margin is None):
    raise errors.InputError("give --encoder together with --min-cosine, --min-margin or both")
  engine = workers.create()
  files_by_pair = readers.by_pair(readers.find_bitext(files, languages))
  groups = {"-".join(map(readers.language_code, x)): group for x, group in files_by_pair.items()}
  digests = [(pair, [*map(readers.digest, bitexts)]) for pair, bitexts in groups.items()]
  sentences = file_cleaning.held_out_sentences(held_out)
  inputs = {
    "files": {"name": " ".join(files), "digest": manifest.digest(digests)},
    "held-out sentences": {"name": " ".join(held_out), "digest": sentences.digest},
  }
  options = {"min_cosine": min_cosine, "min_margin": min_margin}
  if encoder:
    source = encoding.open(encoder)
    inputs["encoder"] = source.identity
    embed = functools.partial(vector_jobs.embed, source, engine=engine)

  def drop_low_scores(path: pathlib.Path, cleaned: str, pair: str) -> dict[str, int]:
    path.touch()
    if not storage.size(cleaned):
      return {}
    with job.Job(f"{cleaned}.scores", inputs=inputs) as score_job:
      folders = [score_job.path(column) for column in "12"]
      for column, folder, language in zip("12", folders, pair.split("-"), strict=True):
        embed([cleaned], folder, field=column, language=language)
      vectors = [*map(vector_store.open_vectors, folders)]
      search = vector_jobs.resumable_search(score_job, engine)
      return file_cleaning.drop_low_scores(path, cleaned, vectors, search=search, **options)

  rules = cleaning.Cleaning(max_characters, max_ratio, min_script_share)
  with job.Job(out, inputs=inputs, options={**options, "rules": rules}) as clean_job:
    if not clean_job.finished:
      # If an encoder scores the pairs next, the cleaned files are intermediate files.
      folder = f"{storage.UNFINISHED}/" if encoder else ""
      tasks = [job.Task(f"{folder}{pair}.tsv", (group,)) for pair, group in groups.items()]
      clean_group = functools.partial(file_cleaning.clean, sentences, rules=rules)
      counts = clean_job.run("clean", clean_group, tasks, engine)
      if encoder:
        cleaned = clean_job.path(folder)
        tasks = [job.Task(f"{pair}.tsv", (f"{cleaned}{pair}.tsv", pair)) for pair in groups]
        dropped = clean_job.run("score", drop_low_scores, tasks)
        counts = [first | second for first, second in zip(counts, dropped, strict=True)]
      clean_job.finish(counts=dict(zip(groups, counts, strict=True)))
    for pair, count in clean_job.facts["counts"].items():
      numbers = ", ".join(f"{number:,} {name}" for name, number in count.items())
      print(f"{clean_job.path(pair)}.tsv: {numbers}")


def download_opus(
  *,
  corpus: list[Name] | None = None,
  recipe: Name | None = None,
  languages: list[Annotated[str, Argument("XX-YY")]] | None = None,
  output: OutputFolder | None = None,
  list: bool = False,
) -> None:
  """Download OPUS releases.

  Args:
    corpus: Corpora, such as Europarl or Europarl=v8.
    recipe: Recipe that lists corpora and language pairs (a name or a YAML file).
    languages: Language pairs (default: all).
    output: Output folder for files such as CORPUS/VERSION/moses/de-en.txt.zip.
    list: List the files with their sizes and licenses, and exit.
  """
  from vmsst import languages as languages_lib
  from vmsst.downloads import fetch, opus
  from vmsst.opus import recipes

  if bool(corpus) == bool(recipe):
    raise errors.InputError("give either --corpus or --recipe")
  if recipe:
    loaded = recipes.load(recipe)
    corpora = [(entry.name, entry.version) for entry in loaded.corpora]

    def in_recipe(source: str, target: str) -> bool:
      first, second = map(languages_lib.opus_language, (source, target))
      return first is not None and second is not None and loaded.wants_pair(first, second)

  else:
    items = (item.partition("=") for item in corpus or [])
    corpora, in_recipe = [(name, version or None) for name, _, version in items], opus.every_pair
  in_languages = opus.pairs_among(languages) if languages else opus.every_pair
  errors.check(bool(list or output), "--output", output, "the output folder")
  fetcher = fetch.Fetcher()
  releases = opus.releases(fetcher, corpora, lambda *pair: in_languages(*pair) and in_recipe(*pair))
  if not releases:
    raise errors.InputError("OPUS has none of these language pairs in these corpora")
  for line in opus.describe(releases):
    print(line)
  if output is not None and not list:
    opus.download(fetcher, releases, storage.path(output), lambda release, _: print(release.path))


def download_evaluation(
  sets: list[Annotated[str, Argument("SET")]] | None = None,
  *,
  output: OutputFolder | None = None,
  list: bool = False,
) -> None:
  """Download evaluation sets.

  Args:
    sets: Names of evaluation sets, or all; --list shows the names.
    output: Output folder.
    list: List the sets with their sizes and licenses, and exit.
  """
  from vmsst.downloads import evaluation_sets, fetch

  if list:
    entries = evaluation_sets.find(sets or [evaluation_sets.ALL])
    print("\n\n".join(map(evaluation_sets.describe, entries)))
    return
  errors.check(bool(sets), "SET", sets, "the evaluation sets (see --list), or all")
  errors.check(output is not None, "--output", output, "the output folder")
  fetcher = fetch.Fetcher()
  for dataset in evaluation_sets.choose(sets or []):
    print(f"{dataset.name}: license {dataset.license}")
    evaluation_sets.download(fetcher, dataset, storage.path(output or ""), print)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "build"): Command(build, resumable=True),
  ("data", "clean"): Command(clean, resumable=True),
  ("data", "download", "opus"): Command(download_opus, resumable=True),
  ("data", "download", "evaluation"): Command(download_evaluation, resumable=True),
  ("data", "embed"): Command(embed_bitext, resumable=True),
  ("data", "mine-negatives"): Command(mine_negatives, resumable=True),
  ("vocab", "train"): Command(train_vocabulary),
}
