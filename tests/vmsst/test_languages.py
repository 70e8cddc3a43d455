import gzip
import pathlib
import unicodedata
from collections import Counter

import pytest

from vmsst import errors, languages
from vmsst.languages import LANGUAGES, NUM_LANGUAGES, language

# Copied from the sources, not from the table.
VMSST_TABLE_15 = """
af am ar az be ber bg bn br bs ca cbk cs da de dtp dv el en eo es et eu fi fr ga gl ha he hi hr hu
hy ia id ie io is it ja ka kab kk km ko ku kw kzj la lfn lt lv mg mhr mk ml mr ms my nb nds nl oc pl
ps pt ro ru sd si sk sl so sq sr sv sw ta te tg th tl tr tt ug uk ur uz vi wuu yue zh
"""
EMS_TABLE_1 = """
af ar bg bn ca cs da de el en eo es et eu fa fi fr gl gu he hi hr hu hy id it ja jv ka kk ko ku lt
lv mk ml mn mr ms my nb nl pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur vi yo zh
"""
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv
dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie
ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv
mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm
rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
FLORES_200 = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn als_Latn amh_Ethi apc_Arab
arb_Arab arb_Latn ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn
bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn
bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn
dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn fij_Latn
fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gaz_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr
hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn
isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor
kaz_Cyrl kbp_Latn kea_Latn khk_Cyrl khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kmr_Latn knc_Arab
knc_Latn kon_Latn kor_Hang lao_Laoo lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn
lua_Latn lug_Latn luo_Latn lus_Latn lvs_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Arab min_Latn
mkd_Cyrl mlt_Latn mni_Beng mos_Latn mri_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn
nus_Latn nya_Latn oci_Latn ory_Orya pag_Latn pan_Guru pap_Latn pbt_Arab pes_Arab plt_Latn pol_Latn
por_Latn prs_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Olck scn_Latn shn_Mymr
sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn spa_Latn srd_Latn srp_Cyrl
ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml taq_Latn taq_Tfng tat_Cyrl tel_Telu tgk_Cyrl
tgl_Latn tha_Thai tir_Ethi tpi_Latn tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng
uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr
yor_Latn yue_Hant zho_Hans zho_Hant zsm_Latn zul_Latn nqo_Nkoo
"""
NTREX_128 = """
afr amh arb aze-Latn bak bel bem ben bod bos bul cat ces ckb-Arab cym dan deu div dzo ell eng eng-GB
eng-IN eng-US est eus ewe fao fas fij fil fin fra fra-CA fuc gle glg guj hau heb hin hmn hrv hun hye
ibo ind isl ita jpn kan kat kaz khm kin kir kmr kor lao lav lit ltz mal mar mey mkd mlg mlt mon mri
msa mya nde nep nld nno nob nso nya orm pan pol por por-BR prs pus ron rus shi sin slk slv smo
sna-Latn snd-Arab som spa spa-MX sqi srp-Cyrl srp-Latn ssw swa swe tah tam tat tel tgk-Cyrl tha tir
ton tsn tuk tur uig ukr urd uzb ven vie wol xho yor yue zho-CN zho-TW zul
"""

SCRIPT_NAMES = {
  "Arab": {"ARABIC"},
  "Armn": {"ARMENIAN"},
  "Beng": {"BENGALI"},
  "Cyrl": {"CYRILLIC"},
  "Deva": {"DEVANAGARI"},
  "Ethi": {"ETHIOPIC"},
  "Geor": {"GEORGIAN"},
  "Grek": {"GREEK"},
  "Hang": {"HANGUL"},
  "Hans": {"CJK"},
  "Hant": {"CJK"},
  "Hebr": {"HEBREW"},
  "Jpan": {"HIRAGANA", "KATAKANA", "CJK"},
  "Khmr": {"KHMER"},
  "Latn": {"LATIN"},
  "Mlym": {"MALAYALAM"},
  "Taml": {"TAMIL"},
  "Telu": {"TELUGU"},
  "Thai": {"THAI"},
}


def lines(path: pathlib.Path, count: int) -> list[str]:
  with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
    return [line for line, _ in zip(file, range(count), strict=False)]


def test_indices_run_from_one_without_gaps():
  assert [entry.index for entry in LANGUAGES] == list(range(1, NUM_LANGUAGES))


def test_indices_that_checkpoints_depend_on_have_not_moved():
  pinned = {"aar": 1, "ara": 15, "zho_Hans": 57, "zho_Hant": 58, "eng": 74, "pes": 207, "zul": 283}
  assert {code: language(code).index for code in pinned} == pinned


@pytest.mark.parametrize("field", ["name", "tatoeba", "ntrex"])
def test_no_two_languages_share_a(field):
  values = [getattr(entry, field) for entry in LANGUAGES if getattr(entry, field)]
  assert not [value for value, count in Counter(values).items() if count > 1]


def test_a_language_with_two_scripts_has_them_under_one_iso_code():
  written = Counter((entry.iso639_3, entry.script) for entry in LANGUAGES)
  assert set(written.values()) == {1}


def test_languages_of_the_vmsst_paper():
  assert len(VMSST_TABLE_15.split()) == 92
  assert len({language(code) for code in VMSST_TABLE_15.split()}) == 92


def test_languages_of_the_ems_paper():
  assert len(EMS_TABLE_1.split()) == 62
  assert len({language(code) for code in EMS_TABLE_1.split()}) == 62


def test_every_two_letter_code_is_a_language_of_its_own():
  assert len(ISO_639_1.split()) == 184
  indices = {code: language(code).index for code in ISO_639_1.split()}
  assert indices["no"] == indices["nb"]
  assert len(set(indices.values())) == 183
  assert all(language(code).iso639_1 == code for code in ISO_639_1.split() if code != "no")


def test_every_flores_code_is_a_language_of_its_own():
  codes = FLORES_200.split()  # 204, and N'Ko of SIB-200
  assert len(codes) == len({language(code) for code in codes}) == 205
  for code in codes:
    assert code in language(code).flores
    assert language(code).script == code[4:]


def test_ntrex_codes_share_a_language_only_between_regions():
  assert len(NTREX_128.split()) == 128  # references and the English source
  regional = {"eng-GB", "eng-IN", "eng-US", "fra-CA", "por-BR", "spa-MX"}
  for code in NTREX_128.split():
    assert language(code).ntrex == (code[:3] if code in regional else code)


@pytest.mark.parametrize(
  "codes",
  [
    "zh zho chi cmn zh_cn zh-CN zho-CN ZHO_HANS zh-Hans cmn_Hans zh_Hans_CN zho_simpl zh_sg",
    "zho_Hant zh_tw zh-TW zho-TW zh_HK zh-Hant cmn-hant zho_trad",
    "pt por pt_br pt-PT por-BR por_Latn",
    "en eng en_GB eng-US eng_Latn",
    "es spa es_419 spa-MX",
    "ar ara arb arb_Arab ar_SA",
    "fa fas per pes pes_Arab fa_IR",
    "prs prs_Arab fa_AF",
    "gsw gsw-BE gsw-ZH",
    "sw swa swh swh_Latn",
    "lv lav lvs lvs_Latn",
    "et est ekk est_Latn",
    "ms msa may zsm zsm_Latn",
    "az aze azj aze-Latn azj_Latn",
    "mn mon khk khk_Cyrl",
    "uz uzb uzn uzn_Latn",
    "ku kur kmr kmr_Latn",
    "sq sqi alb als als_Latn",
    "no nor nb nob nob_Latn",
    "tl tgl fil tgl_Latn fil_Latn",
    "yi yid ydd ji ydd_Hebr",
    "mg mlg plt",
    "om orm gaz",
    "ps pus pbt",
    "ne nep npi",
    "or ori ory",
    "he heb iw",
    "id ind in",
    "jv jav jw",
    "ro ron rum mo",
    "sr srp sr_RS srp-Cyrl srp_Cyrl",
    "sr_Latn srp-Latn",
    "sat sat_Olck sat_Beng",
    "mhr chm",
  ],
)
def test_one_language_under_all_its_codes(codes):
  assert len({language(code) for code in codes.split()}) == 1


@pytest.mark.parametrize(
  "codes",
  [
    "zho_Hans zho_Hant yue wuu",
    "ara arq arz ary acm ajp apc arb_Latn",
    "pes prs tgk",
    "kmr ckb",
    "azj azb",
    "ind zsm max min jav sun",
    "dtp kzj",
    "nob nno dan swe",
    "bos hrv srp srp_Latn sh",
    "ber kab tzm shi taq taq_Tfng",
    "deu gsw swg nds ltz",
    "eng ang",
    "rus orv chu",
    "tgl ceb war pam cbk",
    "aka twi",
    "fuv fuc",
    "ltg lvs lit",
    "ina ile ido lfn nov epo tzl",
    "ace_Latn ace_Arab",
  ],
)
def test_close_relatives_stay_apart(codes):
  assert len({language(code) for code in codes.split()}) == len(codes.split())


def test_a_code_without_script_is_the_script_most_text_is_in():
  scripts = {"ace": "Latn", "bjn": "Latn", "min": "Latn", "knc": "Latn", "taq": "Latn"}
  scripts |= {"kas": "Arab", "arb": "Arab", "srp": "Cyrl", "zho": "Hans"}
  assert {code: language(code).script for code in scripts} == scripts


def test_branches_divide_families_as_handbooks_do():
  branches = {
    "East Slavic": "rus ukr bel orv",
    "West Slavic": "pol ces slk hsb dsb csb szl",
    "South Slavic": "bul mkd srp srp_Latn hrv bos slv sh cu",
    "North Germanic": "swe dan nob nno isl fao",
    "West Germanic": "eng deu nld afr fry nds gsw swg yid ltz lim ang",
    "Brittonic Celtic": "cym bre cor",
    "Goidelic Celtic": "gle gla glv",
  }
  for branch, codes in branches.items():
    assert {language(code).branch for code in codes.split()} == {branch}
  divided = {language(code) for codes in branches.values() for code in codes.split()}
  for entry in LANGUAGES:
    assert (entry in divided) == (entry.branch != entry.family), entry.name
    assert entry.branch.endswith(entry.family)


@pytest.mark.parametrize(
  ("family", "codes"),
  [
    ("Slavic", "ces slk pol rus ukr bel bul mkd srp srp_Latn hrv bos slv csb hsb dsb orv sh"),
    ("Germanic", "eng deu nld swe dan nob nno isl fao afr fry nds gsw swg yid ltz ang"),
    ("Romance", "fra spa por ita ron cat glg oci ast pms lat"),
    ("Baltic", "lit lvs ltg"),
    ("Celtic", "gle gla cym bre cor"),
    ("Finnic", "fin est"),
    ("Turkic", "tur aze kaz uzb tat tuk uig kir bak"),
    ("Semitic", "ara arq arz heb amh tir mlt"),
    ("Indo-Aryan", "hin urd ben mar guj pan npi awa sin"),
    ("Iranian", "pes prs tgk kur ckb pus"),
    ("Dravidian", "tam tel kan mal"),
    ("Sinitic", "zho_Hans zho_Hant yue wuu"),
    ("Bantu", "swh xho zul sna kin nya"),
    ("Constructed", "epo ido ina ile lfn nov tzl"),
  ],
)
def test_families_group_known_relatives(family, codes):
  assert {language(code).family for code in codes.split()} == {family}


@pytest.mark.parametrize(
  ("code", "says"),
  [
    ("germn", "'german' (German)"),
    ("deuu", "'deu' (German)"),
    ("hin_Latn", "'hin' is Hindi"),
    ("pt_XX", "'pt' is Portuguese"),
    ("de-en", "pair of languages"),
    ("12", "NTREX codes"),
    ("", "NTREX codes"),
  ],
)
def test_an_unknown_code_is_named_with_near_ones(code, says):
  with pytest.raises(ValueError, match="unknown language code") as error:
    language(code)
  assert repr(code) in str(error.value)
  assert says in str(error.value)


@pytest.mark.parametrize(
  ("code", "expected"),
  [
    ("pt_br", "por"),
    ("ca_valencia", "cat"),
    ("sr@Latn", "srp_Latn"),
    ("az_IR", "azb"),
    ("tg_TJ", "tgk"),
    ("zh_yue", "yue"),
    ("fr_XX", "fra"),
    ("es_999", "spa"),
    ("be_Latn", None),
    ("ze_en", None),
    ("simple", None),
  ],
)
def test_codes_of_opus(code, expected):
  assert languages.opus_language(code) == (expected and languages.language(expected))


def test_a_code_claimed_twice_is_refused():
  first = languages.Language(1, "A", "aaa", None, "Latn", "X", "X", None, ("aaa_Latn",), None)
  second = languages.Language(2, "B", "bbb", None, "Latn", "X", "X", "aaa", (), None)
  with pytest.raises(ValueError, match=r"'aaa\w*' belongs to both A \(1\) and B \(2\)"):
    languages._aliases([first, second])


def test_tatoeba_files_are_the_tatoeba_column(data_root):
  codes = {path.name.split(".")[2] for path in (data_root / "tatoeba").glob("tatoeba.*.gz")}
  assert len(codes) == 113  # 112 and English
  assert codes == {entry.tatoeba for entry in LANGUAGES if entry.tatoeba}
  assert all(language(code).tatoeba == code for code in codes)


def test_codes_of_the_other_data(data_root):
  codes = set()
  for folder in ("bitext_tatoeba", "bitext_news", "bitext_other"):
    codes |= {code for path in (data_root / folder).iterdir() for code in path.name[:7].split("-")}
  codes |= {path.name.split(".")[0] for path in (data_root / "bible").iterdir()}
  codes |= {path.name.split(".")[1] for path in (data_root / "stsb").iterdir()}
  codes |= {path.name.split(".")[0] for path in (data_root / "nusax").iterdir()}
  codes |= {path.name[:2] for path in (data_root / "mining").iterdir()}
  codes |= {
    code for path in (data_root / "xlsts").glob("*.tsv") for code in path.stem[-5:].split("-")
  }
  codes |= set(lines(data_root / "mkqa" / "mkqa.wide.tsv.gz", 1)[0].split()[2:])
  codes |= set(lines(data_root / "tico19" / "tico19-test.wide.tsv.gz", 1)[0].split())
  assert len(codes) > 90
  unknown = set()
  for code in codes:
    try:
      language(code)
    except ValueError:
      unknown.add(code)
  assert not unknown


def test_scripts_are_those_of_the_real_text(data_root):
  mixed = {"srp", "uzb", "lfn"}  # in Tatoeba in both Cyrillic and Latin script
  files = [(path.name.split(".")[2], path) for path in (data_root / "tatoeba").glob("*.gz")]
  files += [(path.name.split(".")[1], path) for path in (data_root / "ntrex").glob("*.gz")]
  files += [(path.name.split(".")[0], path) for path in (data_root / "sib200").glob("*.gz")]
  assert len(files) > 300
  wrong = {}
  for code, path in files:
    letters = Counter(
      unicodedata.name(letter, "?").replace("-", " ").split()[0]
      for line in lines(path, 20)[1:]
      for letter in line.split("\t")[-1]
      if letter.isalpha()
    )
    script = letters.most_common(1)[0][0]
    if script not in SCRIPT_NAMES[language(code).script] and code not in mixed:
      wrong[path.name] = (language(code).script, script)
  assert not wrong


def test_random_groups_are_of_similar_size_and_never_change():
  groups = languages.random_groups(4)
  assert len(groups) == languages.NUM_LANGUAGES
  sizes = Counter(groups)
  assert set(sizes) == {0, 1, 2, 3}
  assert max(sizes.values()) - min(sizes.values()) <= 1
  assert groups[:12] == (3, 2, 1, 0, 3, 1, 0, 2, 0, 3, 1, 2)  # as first sampled
  assert groups == languages.random_groups(4, seed=0) != languages.random_groups(4, seed=1)


def test_random_groups_are_balanced_over_the_languages_named():
  trained = VMSST_TABLE_15.split()
  assert len(trained) == 92
  groups = languages.random_groups(4, codes=trained)
  assert set(Counter(groups[languages.language(code).index] for code in trained).values()) == {23}
  sizes = Counter(groups)
  assert max(sizes.values()) - min(sizes.values()) <= 1
  assert groups == languages.random_groups(4, codes=reversed(trained))
  assert groups != languages.random_groups(4, seed=1, codes=trained)


@pytest.mark.parametrize("codes", [None, ("de", "en", "tr", "zh", "ja")])
def test_a_language_added_to_the_table_changes_no_other_s_group(monkeypatch, codes):
  before = languages.random_groups(4, codes=codes)
  for more in (1, 2, 3, 4):
    monkeypatch.setattr(languages, "NUM_LANGUAGES", len(before) + more)
    assert languages.random_groups(4, codes=codes)[: len(before)] == before


def test_own_groups_are_those_of_the_languages_named():
  groups = languages.own_groups(["tr", "spa"])
  found = {index: group for index, group in enumerate(groups) if group != -1}
  assert found == {languages.language("tur").index: 0, languages.language("es").index: 1}


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: languages.random_groups(0), "count is 0"),
    (lambda: languages.random_groups(10_000), "count is 10000"),
    (
      lambda: languages.random_groups(3, codes=["de", "deu", "en"]),
      "count is 3; it must be 1 to 2",
    ),
    (lambda: languages.own_groups(["de", "deu"]), "'deu' is named twice: it is German"),
    (lambda: languages.own_groups(["xx"]), "unknown language code 'xx'"),
  ],
)
def test_groups_that_cannot_be_made_are_named(call, message):
  with pytest.raises(errors.InputError, match=message):
    call()
