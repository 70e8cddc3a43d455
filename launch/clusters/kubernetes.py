"""A JobSet manifest for Kubernetes: one indexed Job of equal pods, restarted together.

All pods of a JobSet start anew when one fails. A pod that is evicted (preemption, drained node)
does not count as a failure: `podFailurePolicy` fails the Job at once, and the JobSet restarts it
without counting. JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, which `t5x` reads,
are variables of the container.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst.errors import InputError
from vmsst.launch.clusters import jobs

WORKERS = "workers"
PORT = 1234
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Behind the name of the JobSet and "-workers-0-<pod>" there must be room in 63 characters.
_NAME = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
_NAME_TEXT = "a name has at most 40 lower-case letters, digits and -, and starts with a letter"
_OWN = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@dataclasses.dataclass(frozen=True)
class KubernetesJob:
  """A command for a number of pods.

  Attributes:
    command: What each pod runs.
    image: Container image that has it, and a POSIX shell.
    name: Name of the JobSet.
    namespace: Namespace; None takes kubectl's.
    pods: Pods, each one process.
    resources: What a pod asks for, such as {"nvidia.com/gpu": "8"}.
    node_selector: Labels of the nodes to run on.
    volumes: Folders of a pod that are PersistentVolumeClaims, {claim: folder}; a run of several
      pods needs one that all write to.
    environment: Variables for the command.
    restarts: Times that all pods start anew after a failure. Evictions do not count.
    grace: Seconds between SIGTERM and SIGKILL of a pod.
    service_account: Account that pods run under; None takes the namespace's default.
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
  """The JobSet, as plain values.

  Raises:
    InputError: a name that Kubernetes would not take, or no command.
  """
  jobs.check_command(job.command)
  jobs.check("--name", job.name, _NAME, _NAME_TEXT)
  jobs.check("--image", job.image, r"[A-Za-z0-9._:/@-]+", "this is no reference of an image")
  for folder in job.volumes.values():
    jobs.check("--volume", folder, r"/[^:]*", "write CLAIM=FOLDER, the folder from / on")
  taken = sorted({*job.environment} & {*_OWN})
  if taken:
    raise InputError(f"--env: {taken[0]} is set by the manifest itself")
  # What is evicted is not a failure; what a signal stopped neither. All else counts.
  ignored: list[dict[str, Any]] = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {
      "action": "FailJob",
      "onExitCodes": {"containerName": "main", "operator": "In", "values": [jobs.STOPPED]},
    },
  ]
  metadata = {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})}
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {
      "failurePolicy": {
        "maxRestarts": job.restarts,
        "rules": [
          {
            "name": "evicted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
          }
        ],
      },
      "replicatedJobs": [
        {
          "name": WORKERS,
          "replicas": 1,
          "template": {
            "spec": {
              "completionMode": "Indexed",
              "completions": job.pods,
              "parallelism": job.pods,
              "backoffLimit": 0,
              "podFailurePolicy": {"rules": ignored},
              "template": {"spec": _pod(job)},
            }
          },
        }
      ],
    },
  }


def _pod(job: KubernetesJob) -> dict[str, Any]:
  resources = {name: str(amount) for name, amount in job.resources.items()}
  container: dict[str, Any] = {
    "name": "main",
    "image": job.image,
    "command": ["sh", "-c", _literal(jobs.TASK), "task"],
    "args": [_literal(word) for word in job.command],
    "env": [
      {"name": "JAX_COORDINATOR_ADDRESS", "value": _coordinator(job)},
      {"name": "JAX_NUM_PROCESSES", "value": str(job.pods)},
      {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
      *({"name": name, "value": _literal(value)} for name, value in job.environment.items()),
    ],
    "ports": [{"containerPort": PORT}],
  }
  if resources:
    container["resources"] = {"requests": resources, "limits": dict(resources)}
  pod: dict[str, Any] = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": job.grace,
    "containers": [container],
  }
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
  return pod


def _coordinator(job: KubernetesJob) -> str:
  """Address of the first pod: JobSet gives pods the host name JOBSET-JOB-0-POD."""
  return f"{job.name}-{WORKERS}-0-0.{job.name}:{PORT}"


def _literal(text: str) -> str:
  """`text` so that Kubernetes, which replaces $(NAME), gives it to the container unchanged."""
  return text.replace("$(", "$$(")


def yaml_text(job: KubernetesJob) -> str:
  """The manifest as YAML, for `kubectl create -f -`."""
  import yaml

  class Dumper(yaml.SafeDumper):
    """Shows texts of several lines as they are."""

  def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

  Dumper.add_representer(str, text)
  return yaml.dump(manifest(job), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
