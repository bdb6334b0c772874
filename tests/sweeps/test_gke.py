"""Manifests of sweeps: their parts, and what they say of themselves as JobSets."""

import pytest
import yaml

from creditjax.sweeps import gke
from creditjax.sweeps.backend import Job

api = pytest.importorskip("kubeflow_trainer_api.models")


def made(tpu="v5e:4x4", **changes):
    job = Job("gae_lambda-s3-0a1b2c3d4e", ("python", "-m", "experiments.train", "--workdir=/sweep/trials/a"), None)
    given = {"image": "gcr.io/p/creditjax", "claim": "sweeps", "mount": "/sweep", **changes}
    return gke.job_set(job, gke.parse_slice(tpu), **given)


def test_a_manifest_is_a_job_set():
    (read,) = yaml.safe_load_all(gke.render([made(environment={"A": "1"})]))
    typed = api.jobset_v1alpha2_job_set.JobsetV1alpha2JobSet.from_dict(read)
    # Whatever the schema does not know would be lost on the way.
    assert typed.to_dict() == read
    (one,) = typed.spec.replicated_jobs
    job = one.template.spec
    assert (job.parallelism, job.completions, job.completion_mode, job.backoff_limit) == (4, 4, "Indexed", 0)
    (container,) = job.template.spec.containers
    assert container.resources.to_dict() == {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    assert container.command[-1] == "--workdir=/sweep/trials/a"
    assert typed.spec.failure_policy.max_restarts == 3


def test_several_trials_are_several_documents():
    assert len(list(yaml.safe_load_all(gke.render([made(), made("v6e:2x2")])))) == 2


@pytest.mark.parametrize(
    ("name", "per_host", "wanted"),
    [
        ("v5e:1x1", None, ("tpu-v5-lite-podslice", "1x1", 1, 1)),
        ("v5e:2x4", None, ("tpu-v5-lite-podslice", "2x4", 1, 8)),
        ("v5e:2x4", 4, ("tpu-v5-lite-podslice", "2x4", 2, 4)),
        ("v5e:16x16", None, ("tpu-v5-lite-podslice", "16x16", 64, 4)),
        ("v6e:4x4", None, ("tpu-v6e-slice", "4x4", 4, 4)),
        ("v4:2x2x1", None, ("tpu-v4-podslice", "2x2x1", 1, 4)),
        ("v5p:4x4x8", None, ("tpu-v5p-slice", "4x4x8", 32, 4)),
    ],
)
def test_slices(name, per_host, wanted):
    assert gke.parse_slice(name, per_host) == wanted


@pytest.mark.parametrize(
    ("name", "per_host", "words"),
    [
        ("v3:4x4", None, "'v3:4x4', wanted one of v4, v5e, v5p, v6e and sizes, as v5e:4x4"),
        ("v5e:4x4x4", None, "wanted 2 sizes, as v5e:4x4"),
        ("v4:4x4", None, "wanted 3 sizes, as v4:4x4x4"),
        ("v5e:", None, "wanted 2 sizes"),
        ("v5e:0x4", None, "wanted 2 sizes"),
        ("v5e:3x3", None, "has 9 chips, wanted a multiple of the 4 of a host"),
        ("v5e:4x4", 5, "has 16 chips, wanted a multiple of the 5"),
    ],
)
def test_slices_that_there_are_not(name, per_host, words):
    with pytest.raises(ValueError, match=words):
        gke.parse_slice(name, per_host)


@pytest.mark.parametrize("id", ["a", "9" * 70, "prime-s1-0123456789", "Gae_x-s1-ab", "x" * 44 + "-s0-0123456789"])
def test_names_are_ones_that_kubernetes_takes(id):
    name = gke.object_name(id)
    assert len(name) <= 47 and name[0].isalpha() and name[-1].isalnum()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert gke.object_name(id + "x") != name
