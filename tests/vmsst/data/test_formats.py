"""Faults in files, and the rows that are read nevertheless."""

import gzip

from vmsst.data import formats
from vmsst.languages import language

PAIR = (language("de"), language("en"))


def _read(path):
  """Rows as (number, source, target), and faults as (file name, reason)."""
  rows, faults = [], []
  kind = path.name.removesuffix(".gz")[-3:]
  for item in formats.parse(kind, (str(path),), PAIR):
    if isinstance(item, formats.Row):
      rows.append((item.number, *item.texts))
    else:
      faults.append((item.location.removeprefix(f"{path.parent}/"), item.what))
  return rows, faults


def _tmx(path, body, head=b""):
  content = b'<?xml version="1.0"?>\n' + head + b'<tmx version="1.4"><header/><body>\n' + body
  path.write_bytes(content + b"\n</body></tmx>\n")
  return path


def _unit(german, english):
  segments = [("de", german), ("en", english)]
  tuvs = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in segments)
  return f"<tu>{tuvs}</tu>\n".encode()


def test_gzip_streams_that_break_or_continue(tmp_path):
  path = tmp_path / "a.tsv.gz"
  lines = [(f"Zeile {i * 7919 % 10007}", f"line {i}") for i in range(20_000)]
  text = "".join(f"{a}\t{b}\n" for a, b in lines).encode()
  compressed = gzip.compress(text)
  # Concatenated streams, and trailing zeros as on a tape.
  path.write_bytes(gzip.compress(b"a\tb\n") + gzip.compress(b"c\td\n") + b"\0" * 9)
  assert _read(path) == ([(1, "a", "b"), (2, "c", "d")], [])
  path.write_bytes(compressed[: len(compressed) // 2])
  rows, faults = _read(path)
  assert rows == [(i, *row) for i, row in enumerate(lines, 1)][: len(rows)]
  assert 5_000 < len(rows) < 15_000
  assert faults == [(f"a.tsv.gz:{len(rows) + 1}", "truncated")]


def test_tmx_units_that_are_ill_formed_cost_no_others(tmp_path):
  body = _unit("eins", "one") + _unit("zwei &foo; zwei", "two") + _unit("drei", "three")
  body += b"<tu><tuv xml:lang=de><seg>x</seg></tuv></tu>\n" + _unit("\xff", "five")
  body += _unit("sechs \x0b", "six") + _unit("sieben\nsieben", "seven &amp; &#x37;")
  body += _unit("x" * 2_000_000, "eight") + _unit("neun", "nine") + b"<tu><tu <tu </tu>\n"
  body = body.replace("\xff".encode(), b"\xff")
  path = _tmx(tmp_path / "a.tmx", body)
  rows, faults = _read(path)
  assert rows == [
    (1, "eins", "one"),
    (3, "drei", "three"),
    (7, "sieben sieben", "seven & 7"),
    (9, "neun", "nine"),
  ]
  bad = "ill-formed XML: not well-formed (invalid token)"
  assert faults == [
    ("a.tmx:4", "ill-formed XML: undefined entity"),
    ("a.tmx:6", bad),
    ("a.tmx:7", "a character that cannot be decoded"),
    ("a.tmx:8", bad),
    ("a.tmx:11", "a text of the translation unit is too long"),
    ("a.tmx:13", bad),
    ("a.tmx:13", bad),
  ]
  content = (tmp_path / "a.tmx").read_bytes()
  truncated = "truncated: there is no </tmx> after the last unit"
  for cut in (b"three", b"<tu><tuv xml:lang=de"):  # in a unit, and between two
    (tmp_path / "a.tmx").write_bytes(content[: content.index(cut)])
    rows_before_cut, cut_faults = _read(path)
    assert rows_before_cut == rows[: len(rows_before_cut)]
    assert cut_faults == [faults[0], (f"a.tmx:{4 + len(rows_before_cut)}", truncated)]


def test_tmx_in_other_encodings(tmp_path):
  text = _unit("grün", "green").decode()
  for encoding in ("utf-16", "iso-8859-1", "utf-8-sig"):
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>\n<tmx><body>'
    (tmp_path / "a.tmx").write_bytes(f"{head}{text}</body></tmx>".encode(encoding))
    assert _read(tmp_path / "a.tmx") == ([(1, "grün", "green")], [])
  (tmp_path / "a.tmx").write_bytes(b'<?xml version="1.0" encoding="x"?><tmx/>')
  assert _read(tmp_path / "a.tmx")[1][0][1] == "unknown encoding: x"


def test_tmx_entities_are_not_expanded(tmp_path):
  (tmp_path / "secret").write_text("secret")
  external = f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]>\n'.encode()
  for head in (external, b'<!DOCTYPE tmx [<!ENTITY x "xx">]>\n'):
    path = _tmx(tmp_path / "a.tmx", _unit("a", "b") + _unit("&x;", "c") + _unit("d", "e"), head)
    undefined = "ill-formed XML: undefined entity"
    assert _read(path) == ([(1, "a", "b"), (3, "d", "e")], [("a.tmx:5", undefined)])


def test_a_unit_without_an_end_is_left_out(tmp_path):
  (tmp_path / "a.tmx").write_bytes(b"<tmx><body><tu " + b"x" * (5 << 20))
  assert _read(tmp_path / "a.tmx")[1][-1][1] == "a unit is longer than 4 MB"
