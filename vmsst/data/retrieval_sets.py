"""Queries, documents and relevance judgments, in BEIR's file layout."""

import dataclasses
import os
from collections.abc import Mapping

import msgspec

from vmsst import errors, storage
from vmsst.io import input_files, manifest, text_files

_SPLITS = ("dev", "validation", "test")


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
  """Queries, a document collection to search, and relevance judgments.

  Attributes:
    queries: Text of each query, by query id.
    documents: Text of each document, by document id.
    relevance: Relevance grades, by query id and then by document id. A grade of 0 means not
      relevant.
  """

  queries: Mapping[str, str]
  documents: Mapping[str, str]
  relevance: Mapping[str, Mapping[str, float]]

  def with_prompts(self, query: str, document: str) -> "RetrievalSet":
    """Returns a copy with one prompt prepended to every query and another to every document."""
    return dataclasses.replace(
      self,
      queries={key: query + text for key, text in self.queries.items()},
      documents={key: document + text for key, text in self.documents.items()},
    )

  @property
  def digest(self) -> str:
    """Hash of the queries, documents and grades."""
    return manifest.digest(*map(dict, (self.queries, self.documents, self.relevance)))


class _Record(msgspec.Struct, rename={"id": "_id"}):
  id: str
  text: str
  title: str | None = None


def read(folder: str | os.PathLike[str]) -> RetrievalSet:
  """Reads a retrieval set in BEIR's file layout.

  Args:
    folder: Folder with three files. `corpus.jsonl` contains the fields `_id`, `title` and `text`.
      `queries.jsonl` contains the fields `_id` and `text`. The judgments are read from the first of
      `qrels/dev.tsv`, `qrels/validation.tsv` and `qrels/test.tsv` that exists. This file has a
      header, then lines in the format query id TAB document id TAB grade. Queries without judgments
      are dropped.

  Raises:
    InputError: If a file is missing or malformed, or a judgment contains an unknown query or
      document id.
  """
  paths = [os.path.join(folder, "qrels", f"{split}.tsv") for split in _SPLITS]
  path = next(filter(storage.is_file, paths), paths[0])
  corpus, query_records = (
    text_files.read_records(os.path.join(folder, f"{name}.jsonl"), _Record)
    for name in ("corpus", "queries")
  )
  documents = {record.id: f"{record.title or ''} {record.text}".strip() for record in corpus}
  queries = {record.id: record.text for record in query_records}
  relevance: dict[str, dict[str, float]] = {}
  for number, line in enumerate(text_files.read_lines(path), 1):
    columns = line.split("\t")
    if number == 1 and columns[0] == "query-id":
      continue
    query, document, grade = columns if len(columns) == 3 else ("", "", "")
    if query not in queries or document not in documents or not grade.isdecimal():
      raise errors.InputError(
        f"{path}:{number}: invalid judgment {input_files.shown(line)}; write a query id, a "
        "document id and a grade, separated by TABs"
      )
    relevance.setdefault(query, {})[document] = float(grade)
  return RetrievalSet({query: queries[query] for query in relevance}, documents, relevance)
