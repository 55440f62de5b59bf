"""A job on a real cluster: rendered, applied, trained, recovered."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster import faults, images
from tests.cluster.jobs import TRAIN, Job
from tests.cluster.objects import Cluster, Namespace
from tests.conftest import REPO

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]


def counting(namespace: Namespace, folder: Path, claim: str, arguments: list[str]) -> Job:
    """The counter under way, with its checkpoints on a volume that all workers share."""
    volumes = {"volumes": [{"claim": claim, "path": "/data"}]}
    job = Job(namespace, folder, images.WORKER, volumes, program="counter.py", args=arguments, checkpoints={"directory": "/data/ckpt"})
    job.until_said("attempt 0 runs on every worker")
    return job


def test_any_image_trains(cluster: Cluster, namespace: Namespace, folder: Path) -> None:
    """The plain image has nothing of ours; the objects bring the worker, the program and the key."""
    job = Job(namespace, folder, images.TENSORFLOW, program="counter.py", args=["--steps", "50"])
    assert "succeeded: every worker's program ended with 0" in job.ended()
    assert "counter 100 = replicas 2" in job.outputs()


def test_a_task_trains_in_any_image(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """A module goes along as a script does, and the entrypoint comes with the worker."""
    (folder / "my_task.py").write_text((REPO / "examples" / "my_task.py").read_text())
    part = {"volumes": [{"claim": claim, "path": "/data"}]}
    settings = {"epochs": 3, "batch_size": 16, "export": "/data/model"}
    checkpoints = {"directory": "/data/ckpt", "steps": 20}
    job = Job(namespace, folder, images.TENSORFLOW, part, task="my_task.py", train=settings, checkpoints=checkpoints)
    assert "succeeded: every worker's program ended with 0" in job.ended()
    said = job.outputs()
    assert "strategy: multi_worker_mirrored, because TF_CONFIG names 2 workers" in said
    assert "threads: 1 intra-op" in said
    assert "after 375 steps (2 workers)" in said
    assert "exported to /data/model" in said


@pytest.mark.machine
def test_a_killed_program_and_an_evicted_worker_lose_no_step(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """The counter in the model ends at replicas × steps exactly, whatever happened on the way."""
    arguments = ["--steps", "600", "--every", "50", "--pause", "0.05"]
    job = counting(namespace, folder, claim, arguments)
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
    job = counting(namespace, folder, claim, arguments)
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


FAULTS = (
    *("kill a program", "kill an agent", "delete a worker", "evict a worker", "freeze a worker"),
    *("lose the controller", "lose the API server"),
)


@pytest.mark.machine
def test_whatever_happens_no_step_is_lost(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """E43: one fault after the other, in an order and to workers that a seed chooses; the counter in the model ends exact."""
    chance = random.Random(5)
    arguments = ["--steps", "3000", "--every", "50", "--pause", "0.02"]
    job = counting(namespace, folder, claim, arguments)
    for fault in chance.sample(FAULTS, len(FAULTS)):
        before = job.status()
        meet(fault, job, chance)
        if fault not in ("lose the controller", "lose the API server"):
            namespace.until(lambda before=before: job.status()["attempt"] > before["attempt"], f"attempt after: {fault}", TRAIN)
        namespace.until(lambda: job.status()["phase"] == "running", f"training after: {fault}", TRAIN)
    job.ended()
    assert "counter 6000 = replicas 2" in job.outputs()


def meet(fault: str, job: Job, chance: random.Random) -> None:
    """Let one of FAULTS happen."""
    core, namespace = job.namespace.cluster.core, job.namespace
    live = [worker for worker in job.workers() if worker.status.phase == "Running" and not worker.metadata.deletion_timestamp]
    victim = chance.choice(live)
    if fault == "kill a program":
        os.kill(job.program(victim), signal.SIGKILL)
    elif fault == "kill an agent":
        faults.kill(victim, " agent ")
    elif fault == "delete a worker":
        core.delete_namespaced_pod(victim.metadata.name, namespace.name)
    elif fault == "evict a worker":
        faults.evict(core, victim)
    elif fault == "freeze a worker":
        with faults.frozen(victim):
            job.until_said("its agent was silent for")
    elif fault == "lose the controller":
        (controller,) = (each for each in namespace.pods("tfrun.dev/role=controller") if each.status.phase == "Running")
        core.delete_namespaced_pod(controller.metadata.name, namespace.name, grace_period_seconds=0)
        job.until_said("resumed attempt")
    else:
        with faults.api_gone():
            time.sleep(5)
