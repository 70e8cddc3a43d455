"""The language table maps codes used in corpora to rows in language embedding tables.

Corpora and benchmarks use different codes for the same language: Persian is fa in OPUS, pes in
Tatoeba, fas in NTREX and pes_Arab in FLORES-200. `language` accepts all these codes, in upper or
lower case and with '-' or '_', and returns one `Language`. Its `index` is the row in a language
embedding table.

The table distinguishes languages by these rules:

* A language has one script. If a code set distinguishes scripts, each script is a separate language
  (zho_Hans and zho_Hant, srp_Cyrl and srp_Latn). A code without a script refers to the first of
  these languages in the table, even if a corpus mixes scripts. For example, zh, zho and cmn refer
  to simplified Chinese, and sr and srp refer to Serbian in Cyrillic script.
* A region does not change the language. For example, pt_BR is Portuguese and en-GB is English.
  There are two exceptions: a Chinese region selects the script (zh_TW and zh_HK are traditional),
  and fa_AF is Dari.
* A macrolanguage code refers to the language for which corpora use the code. For example, ara is
  Standard Arabic (arb), fas is Iranian Persian (pes), kur is Northern Kurdish (kmr), and nor is
  Bokmål (nob). In corpora, Serbo-Croatian (sh) and Berber (ber) do not refer to a single language,
  so each of the two has its own row in the table.
* Two codes refer to two languages if any supported corpus uses both codes, even if ISO 639-3 has
  merged them (dtp and kzj, apc and ajp). Filipino (fil) counts as Tagalog (tl), because no
  supported corpus uses both codes.

`family` is a group of obviously related languages, about as large as a genus in WALS and 2,000 to
4,000 years old. Germanic and Slavic are two families in this sense, and Turkic and Dravidian are
one family each. As exceptions, Latin counts as Romance, all creoles form the family "Creole", and
planned languages form the family "Constructed". `branch` subdivides only the Slavic, Germanic and
Celtic families, because their branches are undisputed and papers compare these branches.

The table is in `languages.tsv`. Append a new language as the last row, with the next index, because
checkpoints store embeddings by index.
"""

import csv
import dataclasses
import functools
import pathlib
import random
import re
from collections.abc import Iterable
from typing import Any

from vmsst.errors import InputError


@dataclasses.dataclass(frozen=True)
class Language:
  """A written language and its codes.

  Attributes:
    index: Row in language embedding tables, from 1; never reused. Row 0 is for unknown languages.
    name: Unique English name.
    iso639_3: Three-letter code. Languages that differ only in their script share a code. Three
      codes are not in the current ISO 639-3: ber (a collective code in ISO 639-2), and ajp and kzj
      (both retired).
    iso639_1: Two-letter code, or None.
    script: ISO 15924 code for the script.
    family: Group of related languages; see the module docstring.
    branch: Subgroup of the family, such as "South Slavic". If the family has no subgroups, the
      family itself.
    tatoeba: Code in LASER's Tatoeba v1 test sets (`tatoeba.XXX-eng.XXX`), or None.
    flores: Codes in FLORES-200 and SIB-200.
    ntrex: Code in NTREX-128, or None.
    aliases: Additional codes. A code without a script also works with the language's script
      appended.
    regions: Ignored regions that may follow the language's codes, such as BR in pt_BR.
  """

  index: int
  name: str
  iso639_3: str
  iso639_1: str | None
  script: str
  family: str
  branch: str
  tatoeba: str | None
  flores: tuple[str, ...]
  ntrex: str | None
  aliases: tuple[str, ...] = ()
  regions: tuple[str, ...] = ()


_REGION = re.compile(r"[A-Za-z]{2}|[0-9]{3}")


def _read_table() -> tuple[Language, ...]:
  languages = []
  with pathlib.Path(__file__).with_name("languages.tsv").open(encoding="utf-8") as stream:
    for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
      fields: dict[str, Any] = {name: value or None for name, value in row.items()}
      fields["index"] = int(row["index"])
      fields |= {name: tuple(row[name].split()) for name in ("flores", "aliases", "regions")}
      languages.append(Language(**fields))
  return tuple(languages)


def _key(code: str) -> str:
  return code.strip().lower().replace("-", "_")


def _aliases(languages: Iterable[Language]) -> dict[str, Language]:
  """Maps all codes, normalized by `_key`, to languages.

  Raises:
    ValueError: If two languages have the same code.
  """
  aliases: dict[str, Language] = {}
  default_script: dict[str, str] = {}
  for entry in languages:
    codes = {entry.iso639_3, entry.iso639_1, entry.tatoeba, entry.ntrex, *entry.aliases} - {None}
    keys = {_key(code) for code in codes if code}
    bare = {key for key in keys if "_" not in key}
    default = default_script.setdefault(entry.iso639_3, entry.script) == entry.script
    if not default:
      keys -= bare
    keys |= {_key(code) for code in (*entry.flores, entry.name)}
    for stem in bare:
      scripted = f"{stem}_{entry.script}"
      keys.add(_key(scripted))
      keys |= {
        _key(f"{prefix}_{region}") for prefix in (stem, scripted) for region in entry.regions
      }
    for key in keys:
      holder = aliases.setdefault(key, entry)
      if holder is not entry:
        raise ValueError(
          f"code {key!r} belongs to both {holder.name} ({holder.index}) and {entry.name} "
          f"({entry.index}) in the language table; remove it from one of these languages"
        )
  return aliases


LANGUAGES: tuple[Language, ...] = _read_table()
NUM_LANGUAGES: int = LANGUAGES[-1].index + 1
"""Number of rows in a language embedding table, including row 0 for unknown languages."""

UNDETERMINED = Language(0, "Undetermined", "und", None, "Zyyy", "Undetermined", "Undetermined",
                        None, (), None)  # fmt: skip
"""The language of texts in unknown or mixed languages; `und` in ISO 639-2."""

_ALIASES = _aliases(LANGUAGES)


def language(code: str) -> Language:
  """Looks up a language by its code or name.

  Args:
    code: An ISO 639-1, 639-2 or 639-3 code, a Tatoeba, FLORES-200, NTREX or OPUS code, with or
      without script and region ("zh", "cmn_Hans", "zho-CN", "pt_BR"), or an English name. Case is
      ignored, and '-' is equivalent to '_'. "und" returns `UNDETERMINED`.

  Raises:
    InputError: If no language has this code. The message suggests similar codes.

  Examples:
    >>> language("pt_BR").name
    'Portuguese'
    >>> language("zho-CN") is language("cmn_Hans") is language("zh")
    True
  """
  if _key(code) == UNDETERMINED.iso639_3:
    return UNDETERMINED
  row = _ALIASES.get(_key(code))
  if row is None:
    raise InputError(_unknown(code))
  return row


@functools.cache
def opus_language(code: str) -> Language | None:
  """Returns the language for an OPUS code, or None. Unknown regions are ignored."""
  stem, *subtags = re.split("[_@]", code)
  scripts = [subtag for subtag in subtags if not _REGION.fullmatch(subtag)]
  keys = (_key("_".join([stem, *tags])) for tags in (subtags, scripts))
  return next((_ALIASES[key] for key in keys if key in _ALIASES), None)


def random_groups(count: int, seed: int = 0, codes: Iterable[str] | None = None) -> tuple[int, ...]:
  """Assigns each language index to a random group, 0 to `count` - 1. Groups have similar sizes.

  The result depends only on the arguments. New languages in the table do not change the groups of
  existing languages.

  Args:
    count: Number of groups.
    seed: Random seed.
    codes: Languages to distribute evenly over the groups, such as the training languages (default:
      all languages). All remaining languages are assigned afterwards.

  Raises:
    InputError: If `count` is below 1 or above the number of languages to distribute, or if a code
      is unknown.
  """
  balanced = range(NUM_LANGUAGES) if codes is None else sorted({language(x).index for x in codes})
  if not 1 <= count <= len(balanced):
    raise InputError(f"count is {count}; it must be 1 to {len(balanced)}, the number of languages")
  rng = random.Random(seed)
  order = [*balanced, *(i for i in range(NUM_LANGUAGES) if i not in balanced)]
  groups: list[int] = []
  # Each group gets one of every `count` languages. Python guarantees reproducible numbers for
  # random(), but not for shuffle().
  while len(groups) < NUM_LANGUAGES:
    groups += sorted(range(count), key=lambda _: rng.random())
  by_index = dict(zip(order, groups, strict=False))
  return tuple(by_index[index] for index in range(NUM_LANGUAGES))


def own_groups(codes: Iterable[str]) -> tuple[int, ...]:
  """Assigns each language in `codes` to its own group.

  Returns:
    The group for each language index, or -1 for languages that are not in `codes`.

  Raises:
    InputError: If a code is unknown, or if two codes refer to the same language.
  """
  groups = [-1] * NUM_LANGUAGES
  for group, code in enumerate(codes):
    index = language(code).index
    if groups[index] != -1:
      raise InputError(
        f"{code!r} is {language(code).name}, like another code in the list; remove one of them"
      )
    groups[index] = group
  return tuple(groups)


def _unknown(code: str) -> str:
  import difflib  # Needed only for the error message.

  key = _key(code)
  stem, matches = key.split("_")[0], difflib.get_close_matches(key, _ALIASES, n=4, cutoff=0.6)
  names = dict.fromkeys([stem, *matches] if stem in _ALIASES else matches)
  suggestions = ", ".join(f"{name!r} ({_ALIASES[name].name})" for name in names)
  return (
    f"unknown language code {code!r}{f': did you mean {suggestions}?' if names else '.'} Use an "
    "ISO 639, Tatoeba, FLORES-200 or NTREX code; vmsst/languages.tsv lists them"
  )
