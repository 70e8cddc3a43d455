import memory_store

from vmsst.files import input_files, log_folders, storage


def test_lines_in_a_store_are_appended_to(monkeypatch):
  store = memory_store.installed(monkeypatch)
  url = "gs://bucket/run/train"
  for text in ("one\n", "two\n"):
    logs = log_folders.LogFolder(url)
    with (logs.local / "metrics.jsonl").open("a") as file:
      file.write(text)
    (logs.local / "inner").mkdir()
    (logs.local / "inner" / f"events.{text[:3]}").write_text(text)
    logs.upload(after_seconds=100)
    assert text[:3] not in "".join(storage.names(f"{url}/inner"))
    logs.upload()
  assert input_files.read_bytes(f"{url}/metrics.jsonl") == b"one\ntwo\n"
  assert storage.names(f"{url}/inner") == {"events.one", "events.two"}

  modified = store.modified(f"{url}/metrics.jsonl")
  logs.upload()  # nothing has changed
  assert store.modified(f"{url}/metrics.jsonl") == modified


def test_a_local_folder_is_itself(tmp_path):
  logs = log_folders.LogFolder(tmp_path / "a" / "b")
  assert logs.local == tmp_path / "a" / "b"
  assert logs.local.is_dir()
  logs.upload()
