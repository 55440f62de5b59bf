"""C25: a controller is killed after each of its writes in turn, and each time exactly one group results."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import images, layout
from tests.cluster.jobs import SMALL, Job
from tests.cluster.objects import Cluster, Namespace

pytestmark = [pytest.mark.timeout(600), pytest.mark.machine]

MORTAL = Path(__file__).with_name("mortal_controller.py")
DEATHS = 150  # after which it must be over: each life makes one write more than nothing
LIFE = 60.0  # seconds


class Controllers:
    """Controllers of one job on this machine, one after the other; the job's own is suspended, and the Service leads here."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._folder = folder
        cluster, namespace = job.namespace.cluster, job.namespace.name
        address = cluster.api.configuration.host.rpartition("//")[2].rpartition(":")[0]
        found = job.namespace.until(
            lambda: cluster.core.read_namespaced_secret("job-key", namespace).data or None, "token of the group's key"
        )
        (folder / "key").write_bytes(base64.b64decode(found["token"]))
        files = cluster.core.read_namespaced_config_map("job-files", namespace)
        (folder / "job.json").write_text(files.data["job.yaml"])
        slices = {
            "addressType": "IPv4",
            "metadata": {"name": "here", "labels": {"kubernetes.io/service-name": "job-controller"}},
            "endpoints": [{"addresses": [address]}],
            "ports": [{"name": "rendezvous", "port": 2220, "protocol": "TCP"}],
        }
        cluster.discovery.create_namespaced_endpoint_slice(namespace, slices)
        self.lives: list[int] = []
        self.said = ""

    def live(self, writes: int) -> int:
        """Run one until it dies after so many writes (0: never), or the job is over; returns its exit code."""
        command = [sys.executable, MORTAL, str(writes), "controller", "job.json", "key"]
        environ = {**os.environ, "KUBECONFIG": str(layout.kubeconfig(layout.ADMIN))}
        done = subprocess.run(command, cwd=self._folder, env=environ, capture_output=True, text=True, timeout=LIFE, check=False)
        self.said += done.stdout + done.stderr
        self.lives.append(done.returncode)
        return done.returncode


@pytest.fixture
def controllers(cluster: Cluster, namespace: Namespace, programs: Path) -> tuple[Controllers, Job]:
    """With a job of two workers, of which the first is deleted while it trains."""

    def without_a_pod(each: dict) -> dict:  # type: ignore[type-arg]
        if each["kind"] == "Service":
            each["spec"].pop("selector")
        if each["kind"] == "Job" and each["metadata"]["name"] == "job-controller":
            each["spec"]["suspend"] = True
        return each

    job = Job(namespace, programs, images.TENSORFLOW, SMALL, without_a_pod, program="steps.py", args=["60", "0.1"])
    return Controllers(job, programs), job


def test_a_controller_that_dies_after_each_of_its_writes_leaves_one_group(controllers: tuple[Controllers, Job]) -> None:
    """Each life ends with its first write, so every write of the job is one after which a controller died."""
    lives, job = controllers
    while lives.live(1) == -signal.SIGKILL:
        assert len(lives.lives) < DEATHS, lives.said
    assert lives.lives[-1] == 0, lives.said
    assert len(lives.lives) > 3, "it died a few times"
    assert "attempt 1" not in lives.said, "no attempt ended"
    assert [pod.status.phase for pod in job.workers()] == ["Succeeded", "Succeeded"]
    assert [job.output(worker).count("begin") for worker in range(2)] == [1, 1]


def test_a_replacement_is_made_once_whenever_the_controller_dies(controllers: tuple[Controllers, Job]) -> None:
    """A worker is deleted meanwhile: its successor is made by one life, watched by the next, and never made twice."""
    lives, job = controllers
    namespace = job.namespace
    namespace.until(lambda: len(job.workers()) == 2 and all(each.status.phase == "Running" for each in job.workers()), "running workers")
    deleted = False
    while lives.live(1) == -signal.SIGKILL:
        assert len(lives.lives) < DEATHS, lives.said
        if not deleted and "attempt 0 runs" in lives.said:
            namespace.cluster.core.delete_namespaced_pod(job.workers()[0].metadata.name, namespace.name)
            deleted = True
    assert deleted
    assert lives.lives[-1] == 0, lives.said
    made = [each.metadata.name for each in namespace.cluster.batch.list_namespaced_job(namespace.name).items]
    assert sorted(made) == ["job", "job-0-1", "job-controller"]
    status = json.loads(
        namespace.cluster.batch.read_namespaced_job("job-controller", namespace.name).metadata.annotations["tfrun.dev/status"]
    )
    assert status["result"]["ending"] == "succeeded"
