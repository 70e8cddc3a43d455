"""The language groups that the EMS paper averages over (its Tables IV to VII and XIV).

The paper gives the sizes of the groups but not all members. The members here reproduce, for every
model, the means of Table IV from Tables V and XIV. The sizes in the names are the paper's:

* mUSE (15) and XTREME (38) count English; their means are over 14 and 37 languages.
* SBERT (48) counts English, Kurdish and Malay; its means are over the 45 others.
* Malay is Tatoeba's `max` (North Moluccan Malay); `zsm` is one of the unseen languages.
* "<LASER" and, in Table V, ">300k" and "<300k" follow from the numbers of training sentences in
  Table I. For the latter two both LASER's and EMS's count; in Table XIV (43 and 15) only EMS's.
* On FLORES, "<300k" are the 16 languages of the eight pairs in Table VII.
"""


def _codes(text: str) -> tuple[str, ...]:
  return tuple(text.split())


_SEEN = _codes(
  "afr ara ben bul cat ces cmn dan deu ell epo est eus fin fra glg heb hin hrv hun hye ind ita jav "
  "jpn kat kaz kor kur lit lvs mal mar max mkd mon nld nob pes pol por ron rus slk slv spa sqi srp "
  "swe swh tam tel tgl tha tur ukr urd vie"
)
_FEW = _codes("afr hin hye jav kat kaz kur mar mon nob swh tam tel tgl urd")


def _without(codes: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(code for code in _SEEN if code not in codes)


TATOEBA: dict[str, tuple[str, ...]] = {
  "EMS seen (58)": _SEEN,
  "mUSE (15)": _codes("ara cmn deu fra ita jpn kor nld pol por rus spa tha tur"),
  "XTREME (38)": _without(
    _codes("cat ces dan epo glg hrv hye kur lit lvs mkd mon nob pol ron slk slv sqi srp swe ukr")
  ),
  "SBERT (48)": _without(_codes("afr ben epo eus jav kaz kur mal max swh tam tel tgl")),
  "<LASER (43)": _without(_codes("cat epo glg hye jav kaz kor mal mar mon pes spa tam tgl ukr")),
  ">300k (42)": _without((*_FEW, "pes")),
  "<300k (11)": _codes("afr hin hye kat kaz kur mar swh tam tel tgl"),
  ">300k (43)": _without(_FEW),
  "<300k (15)": _FEW,
}
"""Codes of Tatoeba's files, by name of the group."""

FLORES: dict[str, tuple[str, ...]] = {
  "mUSE (182)": _codes("ar de es fr it ja ko nl pl pt ru th tr zh"),
  "<300k (240)": _codes("af gu hi hy jv ka kk mr my nb sw ta te tl ur yo"),
}
"""Codes of languages by name of the group; all ordered pairs among them count."""
