"""A job on a real cluster: rendered, applied, trained, recovered."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster import faults, images
from tests.cluster.jobs import TRAIN, Job
from tests.cluster.objects import Cluster, Namespace

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]


def test_any_image_trains(cluster: Cluster, namespace: Namespace, folder: Path) -> None:
    """The plain image has nothing of ours; the objects bring the worker, the program and the key."""
    job = Job(namespace, folder, images.TENSORFLOW, program="counter.py", args=["--steps", "50"])
    assert "succeeded: every worker's program ended with 0" in job.ended()
    assert "counter 100 = replicas 2" in job.outputs()


@pytest.mark.machine
def test_a_killed_program_and_an_evicted_worker_lose_no_step(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """The counter in the model ends at replicas × steps exactly, whatever happened on the way."""
    arguments = ["--steps", "600", "--every", "50", "--pause", "0.05"]
    volumes = {"volumes": [{"claim": claim, "path": "/data"}]}
    job = Job(namespace, folder, images.WORKER, volumes, program="counter.py", args=arguments, checkpoints={"directory": "/data/ckpt"})
    job.until_said("attempt 0 runs on every worker")
    first, second = namespace.members("tfrun.dev/role=worker", 2)
    namespace.logged(first.metadata.name, "checkpoint at step 50", TRAIN)
    os.kill(job.program(second), signal.SIGKILL)
    job.until_said("attempt 1 runs on every worker")
    namespace.until(lambda: namespace.log(first.metadata.name).count("checkpoint at step") > 2, "another checkpoint")
    faults.evict(cluster.core, second)
    said = job.ended()
    assert "attempt 2 runs on every worker" in said
    assert "counter 1200 = replicas 2" in job.outputs()
    assert [pod.metadata.labels["job-name"] for pod in namespace.pods("tfrun.dev/role=worker,tfrun.dev/incarnation=1")] == ["job-1-1"]


@pytest.mark.machine
def test_the_loss_of_the_controller_stops_nothing(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """Its pod is deleted while a group trains: no attempt ends, and the next controller decides again."""
    arguments = ["--steps", "900", "--every", "50", "--pause", "0.05"]
    volumes = {"volumes": [{"claim": claim, "path": "/data"}]}
    job = Job(namespace, folder, images.WORKER, volumes, program="counter.py", args=arguments, checkpoints={"directory": "/data/ckpt"})
    job.until_said("attempt 0 runs on every worker")
    first, second = namespace.members("tfrun.dev/role=worker", 2)
    namespace.logged(first.metadata.name, "checkpoint at step 50", TRAIN)
    (controller,) = namespace.pods("tfrun.dev/role=controller")
    cluster.core.delete_namespaced_pod(controller.metadata.name, namespace.name)
    job.until_said("resumed attempt 0, which runs on every worker")
    os.kill(job.program(second), signal.SIGKILL)
    said = job.ended()
    assert "attempt 1 runs on every worker" in said
    assert "attempt 2" not in said
    assert "counter 1800 = replicas 2" in job.outputs()
    assert len(namespace.pods("tfrun.dev/role=worker")) == 2, "no worker was replaced"
