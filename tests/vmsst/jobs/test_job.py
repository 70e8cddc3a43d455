"""Jobs: records, resumption and the tasks that run again."""

import functools

import pytest
import toy_jobs

from vmsst import errors, storage
from vmsst.io import input_files, manifest
from vmsst.jobs import job, outputs

TEXT = {"name": "/a.txt", "digest": "1" * 64}
OTHER = {"name": "/b.txt", "digest": "2" * 64}


def squares(folder, count=4, function=toy_jobs.square, inputs=TEXT, **options):
  """Runs a job that squares numbers; returns the facts of the job."""
  with job.Job(folder, inputs={"text": inputs}, **options) as work:
    if not work.finished:
      toy_jobs.run(work, count, function)
      work.finish(count=count)
    return work.facts


def contents(folder):
  return {
    name: input_files.read_bytes(f"{folder}/{name}").decode()
    for name in storage.files_below(folder)
    if name != manifest.NAME
  }


def test_a_finished_folder_contains_its_files_and_their_record(folder):
  assert squares(folder, options={"dtype": "float32"}) == {"count": 4}
  assert contents(folder) == {f"{n}.txt": str(n**2) for n in range(4)}
  record = manifest.read(folder)
  assert record.inputs == {"text": TEXT}
  assert record.options == {"dtype": "float32"}
  assert record.parts["3.txt"].facts["square"] == 9
  assert record.parts["3.txt"].bytes == 1

  def fail(*_):
    raise AssertionError("A finished job is not done again.")

  assert squares(folder, function=fail, options={"dtype": "float32"}) == {"count": 4}


def test_a_job_resumes_after_the_finished_tasks(folder):
  with pytest.raises(errors.InputError, match=r"squares of 2\.txt: .*No space left.*to resume"):
    squares(folder, function=toy_jobs.fail_at_2)
  with pytest.raises(errors.InputError, match="is not finished; rerun the same command"):
    manifest.read(folder)
  done = []
  squares(folder, function=functools.partial(toy_jobs.noted_square, done))
  assert done == [2, 3]
  assert contents(folder) == {f"{n}.txt": str(n**2) for n in range(4)}


@pytest.mark.parametrize("finished", [True, False])
def test_a_changed_file_is_written_again(folder, finished):
  squares(folder) if finished else toy_jobs.interrupted(folder, TEXT)
  outputs.write_bytes(f"{folder}/1.txt", b"8")
  done = []
  squares(folder, function=functools.partial(toy_jobs.noted_square, done))
  assert 1 in done
  assert 0 not in done
  assert contents(folder)["1.txt"] == "1"


def test_a_task_with_another_key_runs_again_even_in_a_finished_folder(folder):
  def run(key, function=toy_jobs.noted_square):
    done = []
    with job.Job(folder, inputs={"text": TEXT}) as work:
      write = functools.partial(function, done) if function is toy_jobs.noted_square else function
      tasks = [*(job.Task(f"{n}.txt", (n,), key=key) for n in range(3)), job.Task("3.txt", (3,))]
      work.run("squares", write, tasks)
      work.finish()
    return done

  assert run("a") == [0, 1, 2, 3]
  with pytest.raises(errors.InputError, match=r"2\.txt"):
    run("b", toy_jobs.fail_at_2)
  assert run("b") == [2]
  assert run("b") == []


def test_a_folder_of_another_job_is_refused_unless_it_is_replaced(folder):
  squares(folder)
  squares(folder, inputs={**TEXT, "name": "/moved.txt"})  # the same content
  message = (
    r"belongs to another job: text is /a\.txt \(1{12}\), not /b\.txt \(2{12}\); give another folder"
  )
  with pytest.raises(errors.InputError, match=message):
    squares(folder, inputs=OTHER)
  with pytest.raises(errors.InputError, match="k is unset, not 3"):
    squares(folder, options={"k": 3})
  squares(folder, 5, inputs=OTHER, replace=True)
  assert manifest.read(folder).inputs == {"text": OTHER}
  assert "4.txt" in contents(folder)


def test_a_folder_with_other_files_is_refused(folder):
  outputs.write_text(f"{folder}/notes.txt", "mine")
  with pytest.raises(errors.InputError, match="has files that this command did not write"):
    squares(folder)
  assert contents(folder) == {"notes.txt": "mine"}


def test_a_job_that_fails_in_its_first_task_leaves_nothing(folder):
  with pytest.raises(errors.InputError, match=r"0\.txt"):
    squares(folder, function=toy_jobs.fail)
  assert not storage.exists(folder)


def test_a_damaged_record_is_an_error_with_the_fix(folder):
  squares(folder)
  outputs.write_bytes(f"{folder}/{manifest.NAME}", b'{"inputs": 1}')
  with pytest.raises(errors.InputError, match=r"job\.json is damaged: .*; delete the folder"):
    squares(folder)


def total(folder, function=toy_jobs.square, inputs=TEXT):
  """Writes the sum of squares to a file."""
  with job.Job(folder, inputs={"text": inputs}, is_folder=False) as work:
    squares = [each["square"] for each in toy_jobs.run(work, 4, function)]
    with work.output() as path:
      path.write_text(str(sum(squares)))


def test_an_output_file_appears_and_intermediate_files_are_removed(folder):
  total(folder)
  assert input_files.read_bytes(folder) == b"14"
  assert storage.names(folder.rpartition("/")[0]) == {"out"}


def test_a_file_resumes_only_with_the_same_inputs(folder):
  for inputs, expected in ((OTHER, [0, 1, 2, 3]), (TEXT, [2, 3])):
    with pytest.raises(errors.InputError, match=r"2\.txt"):
      total(folder, toy_jobs.fail_at_2)
    done = []
    total(folder, functools.partial(toy_jobs.noted_square, done), inputs)
    assert done == expected


def test_intermediate_files_are_removed_at_the_end(folder):
  with job.Job(folder, inputs={}) as work:
    with work.part(".vmsst/trained") as (path, facts):
      path.write_text("t")
      facts["rows"] = 3
    assert work.done(".vmsst/trained") == {"rows": 3}
    with work.part("index") as (path, _):
      path.write_text("i")
    work.finish()
  assert contents(folder) == {"index": "i"}
  assert list(manifest.read(folder).parts) == ["index"]


def test_a_job_waits_for_files_of_other_machines(tmp_path, monkeypatch):
  with job.Job(tmp_path / "late", inputs={}) as work:
    toy_jobs.run(work, 2, engine=toy_jobs.Elsewhere(visible_after=0.3))
    work.finish()
  assert contents(tmp_path / "late") == {"0.txt": "0", "1.txt": "1"}
  monkeypatch.setattr(job, "_VISIBLE_SECONDS", 0.2)
  missing = pytest.raises(errors.InputError, match=r"squares of 0\.txt: .*0\.txt is missing; .*sha")
  with missing, job.Job(tmp_path / "never", inputs={}) as work:
    toy_jobs.run(work, 2, engine=toy_jobs.Elsewhere())
