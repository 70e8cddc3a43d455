import msgspec
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.opus import recipes, releases

TOP = 1 << 64


def release(corpus, version, source, target):
  pair = releases.order(languages.language(source), languages.language(target))
  return releases.Release(corpus, version, "x", "zip", pair, 1, (source, target))


def random_ranks(sizes, seed=0, buckets=3):
  """Ranks of cells of these sizes, in buckets."""
  rng = np.random.default_rng(seed)
  ranks = {}
  for cell, size in sizes.items():
    rank_N = rng.integers(0, TOP, size, dtype=np.uint64)
    ranks[cell] = [np.sort(ranks_of_bucket) for ranks_of_bucket in np.array_split(rank_N, buckets)]
  return ranks


def taken(ranks, cuts):
  """How many rows of each cell are for training and for validation, counted one by one."""
  counts = {}
  for cell, arrays in ranks.items():
    rows, cut = np.concatenate(arrays).tolist(), cuts[cell]
    train = sum(cut.validation <= rank < cut.train for rank in rows)
    counts[cell] = train, sum(rank < cut.validation for rank in rows)
  return counts


def test_the_recipes_of_the_papers():
  assert recipes.names() == ["ems", "soft_contrastive", "vmsst"]
  ems, soft, vmsst = map(recipes.load, recipes.names())
  assert len(vmsst.languages) == 92
  assert vmsst.pivots == ("eng", "spa")
  assert set(vmsst.languages) - set(vmsst.targets) == {"uzn", "wuu", "yue"}
  # The target of English counts pairs that other targets count, too. Without it, the sum is nearly
  # the paper's 216 million.
  assert sum(vmsst.targets.values()) - vmsst.targets["eng"] == pytest.approx(216e6, rel=2e-3)
  assert len(ems.languages) == len(recipes.language_codes("ems")) == 62  # one Chinese (footnote 4)
  assert {code for name in ems.expected for code in name.split("_")} <= {*ems.languages}
  assert sum(ems.expected.values()) == pytest.approx(143e6, rel=5e-3)
  assert [ems.corpus("UNPC").limit(pair) for pair in ("eng_rus", "eng_fra")] == [5e6, 2e6]
  assert [ems.corpus("OpenSubtitles").limit("deu_eng"), ems.corpus("Europarl").cap] == [2e6, None]
  assert [x.name for x in ems.corpora if x.only_where_nothing_else] == ["Tatoeba"]
  assert {corpus.cap for corpus in soft.corpora} == {25_000}
  assert soft.validation.count(25_000) == 5000
  assert (len(soft.corpora), len(ems.corpora), len(soft.expected)) == (8, 8, 10)


def test_a_recipe_takes_its_corpora_versions_and_pairs():
  for recipe, release_fields, expected in (
    ("vmsst", ("OpenSubtitles", "v2018", "de", "en"), True),
    ("vmsst", ("OpenSubtitles", "v2016", "de", "en"), False),  # version
    ("vmsst", ("Europarl", "v8", "de", "fr"), False),  # pivot
    ("vmsst", ("JW300", "v1", "de", "en"), False),  # corpus
    ("vmsst", ("Tanzil", "v1", "en", "fa"), False),  # language
    ("ems", ("OpenSubtitles", "v2024", "en", "zh_TW"), True),
    ("ems", ("OpenSubtitles", "v2024", "zh_CN", "zh_TW"), False),  # one language, in two scripts
    ("soft_contrastive", ("news-commentary", "v16", "en", "ru"), True),
  ):
    assert recipes.load(recipe).wants(release(*release_fields)) == expected, (
      recipe,
      release_fields,
    )


def test_a_custom_recipe(tmp_path):
  path = tmp_path / "mine.yaml"
  path.write_text(
    "name: mine\npairs: [en-de, tr-en]\nseed: 7\n"
    "corpora:\n- {name: B, version: v2, cap: 10, caps: {de-en: 5}}\n- {name: A}\n"
    "cleaning: {max_ratio: 4.0}\nvalidation: {share: 0.25, at_most: 3}\n"
  )
  mine = recipes.load(path)
  assert mine.pairs == ("deu_eng", "eng_tur")
  assert mine.wants(release("a", "v1", "eng", "tur"))
  assert not mine.wants(release("A", "v1", "deu", "tur"))
  assert not mine.wants(release("B", "v1", "deu", "eng"))
  assert sorted(["A", "b"], key=mine.order) == ["b", "A"]
  assert mine.corpus("b").limit("deu_eng") == 5
  assert mine.cleaning.max_ratio == 4.0
  assert recipes.load(path).digest == mine.digest
  assert msgspec.structs.replace(mine, description="x").digest == mine.digest
  assert msgspec.structs.replace(mine, seed=8).digest != mine.digest
  with pytest.raises(errors.InputError, match=r"recipe vmst: .*one of ems, soft_contrastive, vms"):
    recipes.load("vmst")


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("name: x\ncorpora: [{nam: A}]\n", r"unknown field `nam` - at `corpora\[0\]`"),
    (
      "name: x\ncorpora: [{name: A, caps: {de: 1}}]\n",
      r"'de' is not a language pair.*\[0\]\.caps`",
    ),
    ("name: ../../x\n", "regex .* - at `name`"),
    ("name: x\nlanguages: [en, no]\n", r"False is not a string.*`languages\[1\]`"),
    ("name: x\ntargets: {de: 1}\n", "targets require pivots"),
    ("name: !!python/object/apply:os.system ['touch ran']\n", "could not determine a constructor"),
  ],
)
def test_a_wrong_recipe_is_refused_with_file_and_key(tmp_path, text, message):
  (tmp_path / "bad.yaml").write_text(text)
  with pytest.raises(errors.InputError, match=message) as caught:
    recipes.load(tmp_path / "bad.yaml")
  assert str(tmp_path / "bad.yaml") in str(caught.value)


def test_caps_and_validation_are_exact_and_the_lowest_ranks_are_taken():
  recipe = recipes.Recipe(
    "x",
    corpora=(recipes.Corpus("A", cap=100), recipes.Corpus("B", caps={"deu_eng": 7})),
    validation=recipes.Validation(share=0.2, at_most=15),
  )
  sizes = {("deu_eng", "A"): 1000, ("eng_fra", "A"): 50, ("deu_eng", "B"): 30, ("eng_fra", "B"): 5}
  ranks = random_ranks(sizes)
  cuts = recipes.plan(recipe, ranks)
  assert list(taken(ranks, cuts).values()) == [(85, 15), (40, 10), (6, 1), (4, 1)]
  cut = cuts["deu_eng", "A"]
  lowest = sorted(np.concatenate(ranks["deu_eng", "A"]).tolist())
  assert [sum(rank < bound for rank in lowest) for bound in cut] == [100, 15]
  # A smaller cap selects a subset of the rows of a larger cap.
  smaller = msgspec.structs.replace(
    recipe, corpora=(recipes.Corpus("A", cap=40), recipe.corpora[1])
  )
  assert recipes.plan(smaller, ranks)["deu_eng", "A"].train < cut.train


def test_tatoeba_serves_only_pairs_that_no_other_corpus_has():
  recipe = recipes.Recipe(
    "x", corpora=(recipes.Corpus("A"), recipes.Corpus("T", only_where_nothing_else=True))
  )
  sizes = {("deu_eng", "A"): 1, ("deu_eng", "T"): 9, ("eng_fra", "A"): 0, ("eng_fra", "T"): 9}
  ranks = random_ranks(sizes)
  counts = taken(ranks, recipes.plan(recipe, ranks))
  assert [train for train, _ in counts.values()] == [1, 0, 0, 9]


def test_targets_level_the_largest_cells_of_a_language_and_count_both_pivots():
  recipe = recipes.Recipe(
    "x",
    corpora=(recipes.Corpus("A"), recipes.Corpus("B")),
    pivots=("eng", "spa"),
    targets={"deu": 100, "fra": 10_000, "eng": 20, "spa": 30},
    expected={"eng_tur": 33},
  )
  sizes = {
    ("deu_eng", "A"): 10, ("deu_eng", "B"): 500, ("deu_spa", "A"): 25, ("deu_spa", "B"): 5000,
    ("eng_fra", "A"): 70, ("eng_spa", "A"): 300, ("eng_tur", "B"): 40,
  }  # fmt: skip
  ranks = random_ranks(sizes)
  cuts = recipes.plan(recipe, ranks)
  counts = [train for train, _ in taken(ranks, cuts).values()]
  assert counts == [10, 32, 25, 33, 70, 20, 40]
  assert recipes.goals(recipe, ranks, cuts) == [
    ("deu", 100, 100, 5535),
    ("eng", 20, 20, 300),
    ("eng_tur", 33, 40, 40),
    ("fra", 10_000, 70, 70),
    ("spa", 30, 20, 300),
  ]
