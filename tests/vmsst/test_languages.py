from collections import Counter

import pytest

from vmsst import errors, languages
from vmsst.downloads import evaluation_sets
from vmsst.languages import LANGUAGES, NUM_LANGUAGES, language
from vmsst.opus import recipes


def test_indices_that_checkpoints_depend_on_have_not_moved():
  assert [entry.index for entry in LANGUAGES] == list(range(1, NUM_LANGUAGES))
  pinned = {"aar": 1, "ara": 15, "zho_Hans": 57, "zho_Hant": 58, "eng": 74, "pes": 207, "zul": 283}
  assert {code: language(code).index for code in pinned} == pinned


def test_every_flores_code_is_a_language_of_its_own():
  codes = {item.path.split("/")[2] for item in evaluation_sets.catalog()["sib200"].items}
  assert len(codes) == len({language(code) for code in codes}) == 205
  for code in codes:
    assert code in language(code).flores
    assert language(code).script == code[4:]


def test_ntrex_codes_share_a_language_only_between_regions():
  codes = {item.path.split(".")[-2] for item in evaluation_sets.catalog()["ntrex"].items}
  assert len(codes) == 128  # references and the English source
  regional = {"eng-GB", "eng-IN", "eng-US", "fra-CA", "por-BR", "spa-MX"}
  for code in codes:
    assert language(code).ntrex == (code[:3] if code in regional else code)


@pytest.mark.parametrize("codes", [
  "zh zho chi cmn zh_cn zh-CN ZHO_HANS cmn_Hans zh_Hans_CN zho_simpl zh_sg",
  "zho_Hant zh_tw zho-TW zh_HK cmn-hant zho_trad",
  "pt por pt_br por-BR por_Latn", "ar ara arb arb_Arab ar_SA", "fa fas per pes pes_Arab fa_IR",
  "prs prs_Arab fa_AF", "no nor nb nob nob_Latn", "tl tgl fil tgl_Latn fil_Latn", "he heb iw",
  "sr srp sr_RS srp-Cyrl srp_Cyrl", "sr_Latn srp-Latn",
])  # fmt: skip
def test_one_language_under_all_its_codes(codes):
  assert len({language(code) for code in codes.split()}) == 1


@pytest.mark.parametrize(
  ("code", "says"),
  [
    ("germn", "'german' (German)"),
    ("pt_XX", "'pt' (Portuguese)"),
    ("de-en", "'de' (German)"),
    ("", "or NTREX code; vmsst/languages.tsv lists them"),
  ],
)
def test_an_unknown_code_is_named_with_near_ones(code, says):
  with pytest.raises(ValueError, match="unknown language code") as error:
    language(code)
  assert repr(code) in str(error.value)
  assert says in str(error.value)


def test_codes_of_opus():
  known = {"sr@Latn": "srp_Latn", "az_IR": "azb", "zh_yue": "yue", "es_999": "spa"}
  for code, expected in known.items():
    assert languages.opus_language(code) == language(expected)
  assert languages.opus_language("simple") is languages.opus_language("und") is None


def test_tatoeba_files_are_the_tatoeba_column(data_root):
  codes = {path.name.split(".")[2] for path in (data_root / "tatoeba").glob("tatoeba.*.gz")}
  assert len(codes) == 113  # 112 and English
  assert codes == {entry.tatoeba for entry in LANGUAGES if entry.tatoeba}
  assert all(language(code).tatoeba == code for code in codes)


def test_random_groups_are_of_similar_size_and_never_change():
  groups = languages.random_groups(4)
  assert len(groups) == languages.NUM_LANGUAGES
  assert groups[:12] == (3, 2, 1, 0, 3, 1, 0, 2, 0, 3, 1, 2)  # as first sampled
  assert groups == languages.random_groups(4, seed=0) != languages.random_groups(4, seed=1)


def test_random_groups_are_balanced_over_the_languages_named():
  trained = recipes.load("vmsst").languages
  assert len(trained) == 92
  groups = languages.random_groups(4, codes=trained)
  assert set(Counter(groups[languages.language(code).index] for code in trained).values()) == {23}
  sizes = Counter(groups)
  assert max(sizes.values()) - min(sizes.values()) <= 1
  assert groups == languages.random_groups(4, codes=reversed(trained))
  assert groups != languages.random_groups(4, seed=1, codes=trained)


def test_own_groups_belong_to_the_selected_languages():
  groups = languages.own_groups(["tr", "spa"])
  assert (groups[language("tur").index], groups[language("es").index]) == (0, 1)
  assert Counter(groups) == {0: 1, 1: 1, -1: languages.NUM_LANGUAGES - 2}


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: languages.random_groups(0), "count is 0"),
    (lambda: languages.own_groups(["de", "deu"]), "'deu' is German, like another code"),
  ],
)
def test_groups_that_cannot_be_made_are_named(call, message):
  with pytest.raises(errors.InputError, match=message):
    call()
