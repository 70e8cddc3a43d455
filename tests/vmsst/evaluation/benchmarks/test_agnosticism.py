import hashlib

import benchmark_trees
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import papers, suite
from vmsst.evaluation.benchmarks import agnosticism

SENTENCES = 8


class Concepts:
  """Encodes "de 3" as concept 3 plus an offset that depends on the language's first letter.

  If the language starts with a capital letter, concept 0 gets the vector of concept 1.
  """

  def encode(self, texts: list[str]) -> np.ndarray:
    vectors = np.zeros([len(texts), SENTENCES + 4])
    for row, text in enumerate(texts):
      language, concept = text.split()
      axis = 1 if concept == "0" and language[0].isupper() else int(concept)
      vectors[row, axis] = 1
      seed = int(hashlib.sha256(language[0].lower().encode()).hexdigest()[:8], 16)
      vectors[row] += 0.1 * np.random.default_rng(seed).normal(size=SENTENCES + 4)
    return vectors


def sentences(language: str) -> list[str]:
  return [f"{language} {number}" for number in range(SENTENCES)]


def test_ntrex_gives_errors_of_all_ordered_pairs(tmp_path):
  folder = tmp_path / "ntrex"
  line_files.write_lines(folder / "newstest2019-src.eng.txt", sentences("en"))
  line_files.write_lines(folder / "ntrex.deu.txt.gz", sentences("de"))
  line_files.write_lines(folder / "newstest2019-ref.spa-MX.txt", sentences("Es"))
  line_files.write_lines(folder / "newstest2019-ref-2.spa.txt", sentences("es"))
  seen = [languages.language(code) for code in ("eng", "deu")]
  scored = benchmark_trees.run_benchmark(agnosticism.BENCHMARK, Concepts(), tmp_path, seen=seen)
  (result,) = scored["results"]
  assert result["languages"] == ["spa", "spa-MX", "eng", "deu"]
  assert result["arrays"]["labels"] == ["spa_2", "spa-MX", "eng", "deu"]
  # In the Mexican version, sentence 0 has the vector of sentence 1. As a query, sentence 0 finds
  # sentence 1 (1 error of 8). As candidates, neither sentence is found (2 errors of 8).
  expected = np.zeros([4, 4])
  expected[1], expected[:, 1] = 12.5, 25
  expected[1, 1] = 0
  np.testing.assert_allclose(result["arrays"]["error"], expected)
  assert scored["summary"] == pytest.approx(
    {
      f"{name} (incomplete)": value
      for name, value in {
        "error": 3 * (12.5 + 25) / 12,
        "error seen": 0,
        "error unseen": 3 * (12.5 + 25) / 10,
        "lowest error": 0,
        "highest error": 25,
        "error within a language": (12.5 + 25) / 2,
        # With English or German, the two Spanish versions have errors of 0% and 12.5% as queries,
        # 0% and 25% as candidates.
        "spread over versions": (12.5 + 25) / 2,
        "largest spread over versions": 25,
        "error within families": (12.5 + 25) / 4,
        "error between families": 2 * (12.5 + 25) / 8,
      }.items()  # Branches are omitted: each family has only one.
    }
  )
  assert "French" in scored["missing"]
  assert not {"English", "German", "Spanish"} & set(scored["missing"])


def test_ted_talks_are_rows_with_a_usable_text_in_every_language(tmp_path):
  codes = [*agnosticism.TED_CODES[:-1], "zh-cn"]
  rows = [[f"{code} {number}" for code in codes] for number in range(SENTENCES)]
  rows[1][2] = "_ _ NULL _ _"
  rows[2][0] = "__NULL__"
  rows[3][5] = " ".join(51 * ["mot"])
  rows[4][3] = rows[0][3]
  header = ["talk_name", "az", *codes]
  lines = ["\t".join(header), *("\t".join(["talk", "__NULL__", *row]) for row in rows)]
  lines.append("a line\twith other fields")
  line_files.write_lines(tmp_path / "ted" / "all_talks_train.tsv", lines)
  (task,) = agnosticism.read_ted(tmp_path)
  assert [x.language for x in task.text_sets] == [*codes[:-1], "zh"]
  for code, text_set in zip(codes, task.text_sets, strict=True):
    assert text_set.texts == [f"{code} {number}" for number in (0, 5, 6, 7)]
  scored = benchmark_trees.run_benchmark(agnosticism.TED, Concepts(), tmp_path)
  (result,) = suite.collect_results(scored)
  names = {x.of for x in papers.load() if x.benchmark == "agnosticism_ted"}
  assert names == {pair.name for pair in agnosticism.pair_errors(result)}


def test_translations_have_errors_and_distances_along_their_paths(tmp_path):
  folder = tmp_path / "translations"
  line_files.write_lines(folder / "talk.eng.txt", sentences("en"))
  line_files.write_lines(folder / "talk.eng+deu.a.txt", sentences("de"))
  line_files.write_lines(folder / "talk.eng+deu.a+zho.txt", sentences("zh"))
  line_files.write_lines(folder / "alice.pol.a.txt", sentences("pl"))
  line_files.write_lines(folder / "alice.pol.b.txt.gz", sentences("Pl"))
  scored = benchmark_trees.run_benchmark(agnosticism.TRANSLATIONS, Concepts(), tmp_path)
  results = {result.name: result for result in suite.collect_results(scored)}
  pairs = {x.name: x for text in ("alice", "talk") for x in agnosticism.pair_errors(results[text])}
  assert pairs["alice pol_a->pol_b"].metrics == {"error": 25}
  assert pairs["alice pol_b->pol_a"].metrics == {"error": 12.5}
  assert pairs["talk eng->eng+deu_a+zho"].languages == ("eng", "zho")
  assert scored["summary"]["error, mean of texts"] == pytest.approx((12.5 + 25) / 2 / 2)
  assert scored["summary"]["alice: error within a language"] == pytest.approx((12.5 + 25) / 2)
  assert scored["missing"] == []

  def distance(first: str, second: str) -> float:
    vectors = [Concepts().encode(sentences(language)) for language in (first, second)]
    vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
    return 100 * float(np.mean([np.linalg.norm(x - y) for x, y in zip(*vectors, strict=True)]))

  path = results["talk path eng+deu_a+zho"]
  assert path.languages == ("eng", "deu", "zho")
  assert path.metrics == pytest.approx(
    {
      "distance to its source": distance("de", "zh"),
      "distance to the original": distance("en", "zh"),
      "distance along the path": distance("en", "de") + distance("de", "zh"),
    },
    rel=1e-5,
  )


# --------------------------------------------------------------------------------------------
# Metrics


def test_error_matrix_equals_loops_over_single_vectors():
  rng = np.random.default_rng(0)
  # Vectors of +-1 with 4 dimensions have exact cosines with many ties.
  first, second = (rng.choice([-1.0, 1.0], [12, 4]) for _ in range(2))
  third = np.where(rng.uniform(size=[12, 1]) < 0.5, first, second)
  vectors = [first, 0.1 * second, 30 * third]
  error_LL = agnosticism.error_matrix(vectors)
  for i, source in enumerate(vectors):
    for j, target in enumerate(vectors):
      wrong = 0
      for row, query in enumerate(source):
        scores = [round(float(query @ x / np.abs(query[0] * x[0])), 6) for x in target]
        wrong += scores.index(max(scores)) != row
      assert error_LL[i, j] == pytest.approx(0 if i == j else wrong / 12)
  assert 0 < error_LL[0, 2] < error_LL[0, 1]


def test_similar_languages_are_neighbors_in_the_tree():
  error_LL = np.array([[0, 1, 2, 9], [1, 0, 6, 5], [6, 6, 0, 7], [9, 5, 7, 0.0]])
  # Distances: 0-1 has 1; cluster 0-1 and 2 have (4 + 6) / 2; that cluster and 3 (9 + 5 + 7) / 3.
  tree_M4 = agnosticism.language_tree(error_LL)
  np.testing.assert_array_equal(tree_M4[:, 2], [1, 5, 7])
  assert {*tree_M4[0, :2]} == {0, 1}
