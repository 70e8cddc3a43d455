import pathlib

import pytest

from vmsst import errors
from vmsst.bitext import array_records

RECORDS = [f"record {i} ".encode() * (i % 9) for i in range(500)]


@pytest.fixture
def path(tmp_path):
  path = tmp_path / "x.array_record"
  assert array_records.write(path, iter(RECORDS)) == (500, sum(map(len, RECORDS)))
  return path


def test_records_are_read_in_any_order(path):
  found = array_records.ArrayRecords(path, 500)
  assert len(found) == 500
  assert found.read([17, 3, 499, 3]) == [RECORDS[i] for i in (17, 3, 499, 3)]
  assert found.read([]) == []
  assert found[-1] == RECORDS[-1]
  assert found[5:8] == RECORDS[5:8]
  assert list(found) == RECORDS
  with pytest.raises(IndexError):
    found[500]


def test_the_same_records_are_the_same_bytes(path, tmp_path):
  array_records.write(tmp_path / "y", RECORDS)
  assert (tmp_path / "y").read_bytes() == path.read_bytes()


def test_any_damage_is_named(path):
  whole = path.read_bytes()
  found = set()
  for place in range(0, len(whole), 4001):
    path.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
    try:
      assert list(array_records.ArrayRecords(path, 500)) == RECORDS  # padding
    except errors.InputError as error:
      found.add(str(error)[: len(str(path)) + 12])
  assert found == {f"{path}: Corrupted ", f"{path} is truncate"}
  path.write_bytes(whole)
  with pytest.raises(errors.InputError, match="has 500 records, but its dataset lists 501"):
    array_records.ArrayRecords(path, 501)
  for given, message in (
    (pathlib.Path("/nowhere/x"), "no such file"),
    ("gs://bucket/x", "cannot be in an object store; give a local path"),
  ):
    with pytest.raises(errors.InputError, match=message):
      array_records.ArrayRecords(given)


def test_a_full_disk_is_an_error():
  with pytest.raises(OSError, match="/dev/full"):
    array_records.write("/dev/full", RECORDS * 100)
