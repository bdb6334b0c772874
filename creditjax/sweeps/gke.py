"""Trials as JobSets of a Kubernetes cluster on Google Cloud: manifests to look at and to apply, nothing is launched.

The trainer's processes find each other by what GKE tells every pod of a TPU slice (--coordinator=auto). They see the
sweep's directory through a volume, so that whoever mounts it reads the results as those of any other sweep.
"""

from collections.abc import Mapping, Sequence
import hashlib
import math
import re
from typing import Any, NamedTuple

import yaml

from creditjax.sweeps.backend import Job

# Names of the node pools' accelerators, see "TPUs in GKE" in Google Cloud's documentation.
ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
# Chips of these are laid out in a plane, and up to eight of them sit in one host.
_PLANE = ("v5e", "v6e")
_CHIPS_PER_HOST = 4
# Ports that processes of a slice use among each other.
_PORTS = (8471, 8080, 8476)
# What a pod may need to save when its node is taken away, in seconds.
_GRACE = 120


class Slice(NamedTuple):
    """A TPU slice.

    Attributes:
      accelerator: name of the node pool's accelerator.
      topology: its sizes, as 4x4.
      hosts: number of hosts, each of which runs a process.
      chips: per host.
    """

    accelerator: str
    topology: str
    hosts: int
    chips: int


def parse_slice(name: str, chips_per_host: int | None = None) -> Slice:
    """The slice of "v5e:4x4".

    Args:
      name: kind of chip and sizes.
      chips_per_host: where machines of several sizes make up the same topology; by default the whole of a slice of up
        to eight v5e or v6e chips sits in one host, and else four chips in each.

    Raises:
      ValueError: another kind of chip, sizes of another number of dimensions, or hosts that do not make up the slice.

    >>> parse_slice("v5e:4x4")
    Slice(accelerator='tpu-v5-lite-podslice', topology='4x4', hosts=4, chips=4)
    """
    kind, _, topology = name.partition(":")
    if kind not in ACCELERATORS:
        raise ValueError(f"slice: {name!r}, wanted one of {', '.join(ACCELERATORS)} and sizes, as v5e:4x4")
    dimensions = 2 if kind in _PLANE else 3
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)" + f"{{{dimensions - 1}}}", topology):
        raise ValueError(f"slice: {name!r}, wanted {dimensions} sizes, as {kind}:{'x'.join('4' * dimensions)}")
    count = math.prod(map(int, topology.split("x")))
    chips = chips_per_host or (count if kind in _PLANE and count <= 8 else _CHIPS_PER_HOST)
    if chips < 1 or count % chips:
        raise ValueError(f"slice: {name!r} has {count} chips, wanted a multiple of the {chips} of a host")
    return Slice(ACCELERATORS[kind], topology, count // chips, chips)


def job_set(
    job: Job,
    tpu: Slice,
    image: str,
    claim: str,
    mount: str,
    retries: int = 3,
    namespace: str = "default",
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JobSet of a trial.

    When a process fails, or its node is taken away, all of them are started again and resume from the checkpoint.

    Args:
      job: the trial; its command as it runs inside the image, with the directory as it is mounted there.
      tpu: the slice that it gets for itself.
      image: of the container, which has this working directory as its own.
      claim: name of the PersistentVolumeClaim that holds the sweep.
      mount: where it is mounted.
      retries: times that all is started again after a failure.
      namespace: of the cluster.
      environment: variables of the container.
    """
    name = object_name(job.id)
    container = {
        "name": "trainer",
        "image": image,
        "command": list(job.command),
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "ports": [{"containerPort": port, "protocol": "TCP"} for port in _PORTS],
        # Requests and limits of an accelerator have to be the same.
        "resources": {kind: {"google.com/tpu": str(tpu.chips)} for kind in ("requests", "limits")},
        "volumeMounts": [{"name": "sweep", "mountPath": mount}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": tpu.accelerator,
            "cloud.google.com/gke-tpu-topology": tpu.topology,
        },
        "containers": [container],
        "volumes": [{"name": "sweep", "persistentVolumeClaim": {"claimName": claim}}],
    }
    labels = {"app.kubernetes.io/name": "creditjax", "creditjax/trial": name}
    one_process_a_host = {
        "parallelism": tpu.hosts,
        "completions": tpu.hosts,
        "completionMode": "Indexed",
        # The JobSet starts all of them again, not the Job one of them.
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            # A slice is for one trial alone.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": retries},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": one_process_a_host}}],
        },
    }


def render(job_sets: Sequence[Mapping[str, Any]]) -> str:
    """One YAML document a JobSet, for `kubectl apply -f`."""
    return yaml.safe_dump_all(job_sets, sort_keys=False, explicit_start=True)


def object_name(id: str) -> str:
    """A trial's id as a name that Kubernetes takes: lower case, digits and dashes, and room for the pods' suffixes.

    >>> object_name("gae_lambda-s3-0a1b2c3d4e")
    'gae-lambda-s3-0a1b2c3d4e'
    """
    name = re.sub(r"[^a-z0-9]+", "-", id.lower()).strip("-")
    # The JobSet's pods are called after it, with the job's and the host's number, and a host name has 63 letters.
    if len(name) > 45:
        name = f"{name[:34].rstrip('-')}-{hashlib.sha256(id.encode()).hexdigest()[:10]}"
    return name if name[:1].isalpha() else f"t-{name}"
