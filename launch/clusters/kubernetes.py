"""A JobSet manifest for Kubernetes: one indexed Job of equal pods, restarted together.

When a pod fails, all pods of the JobSet restart. An evicted pod (preemption, drained node) does not
count as a failure: `podFailurePolicy` fails the Job at once, and the JobSet restarts it without
counting. The container's variables tell `t5x` its place in the run.
"""

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst.errors import InputError
from vmsst.launch.clusters import jobs

# A host name, "<JobSet>-workers-0-<pod>", has at most 63 characters.
_NAME = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
_NAME_TEXT = "use at most 40 lower-case letters, digits and -, starting with a letter"


@dataclasses.dataclass(frozen=True)
class KubernetesJob:
  """A command for a number of pods.

  Attributes:
    command: Command of each pod.
    image: Container image with the command and a POSIX shell.
    name: Name of the JobSet.
    namespace: Namespace; None for kubectl's.
    pods: Number of pods, one process each.
    resources: Resources per pod, such as {"nvidia.com/gpu": "8"}.
    node_selector: Labels of the nodes to run on.
    volumes: PersistentVolumeClaims to mount, {claim: folder}; a run of several pods needs one that
      all can write to.
    environment: Variables of the command.
    restarts: Number of restarts after failures; evictions do not count.
    grace: Seconds between SIGTERM and SIGKILL of a pod.
    service_account: Account of the pods; None for the namespace's default.
  """

  command: Sequence[str]
  image: str
  name: str = "vmsst"
  namespace: str | None = None
  pods: int = 1
  resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
  node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
  volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  restarts: int = 5
  grace: int = 120
  service_account: str | None = None


def manifest(job: KubernetesJob) -> dict[str, Any]:
  """Returns the JobSet as plain values.

  Raises:
    InputError: Kubernetes does not accept a name, or there is no command.
  """
  import yaml

  jobs.check_command(job.command)
  jobs.check("--name", job.name, _NAME, _NAME_TEXT)
  jobs.check("--image", job.image, r"[A-Za-z0-9._:/@-]+", "this is not an image reference")
  for folder in job.volumes.values():
    jobs.check("--volume", folder, r"/[^:]*", "write CLAIM=FOLDER with an absolute folder")
  for amount in job.resources.values():
    jobs.check("--resource", amount, r".+", "write NAME=AMOUNT")
  template = string.Template(jobs.template("jobset.yaml"))
  jobset = yaml.safe_load(template.substitute(dataclasses.asdict(job)))
  if job.namespace:
    jobset["metadata"]["namespace"] = job.namespace
  pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
  [container] = pod["containers"]
  container["command"][2] = _literal(jobs.TASK)
  container["args"] = [_literal(word) for word in job.command]
  for name, value in job.environment.items():
    if any(name == entry["name"] for entry in container["env"]):
      raise InputError(f"--env: the manifest sets {name} itself; remove it")
    container["env"].append({"name": name, "value": _literal(value)})
  if job.resources:
    container["resources"] = {"requests": dict(job.resources), "limits": dict(job.resources)}
  if job.volumes:
    names = {claim: f"volume-{i}" for i, claim in enumerate(job.volumes)}
    pod["volumes"] = [
      {"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()
    ]
    container["volumeMounts"] = [
      {"name": names[claim], "mountPath": folder} for claim, folder in job.volumes.items()
    ]
  if job.node_selector:
    pod["nodeSelector"] = dict(job.node_selector)
  if job.service_account:
    pod["serviceAccountName"] = job.service_account
  return jobset


def _literal(text: str) -> str:
  """Returns `text` escaped for Kubernetes, which replaces $(NAME)."""
  return text.replace("$(", "$$(")


def yaml_text(job: KubernetesJob) -> str:
  """Returns the manifest as YAML, for `kubectl create -f -`."""
  import yaml

  class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""

  def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

  Dumper.add_representer(str, text)
  return yaml.dump(manifest(job), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
