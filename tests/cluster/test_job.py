"""A job on a real cluster: rendered, applied, trained, recovered."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import kubernetes
import pytest
import yaml

from tests.cluster import faults, images
from tests.cluster.objects import Cluster, Namespace
from tests.conftest import REPO, TFRUN

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]

TRAIN = 240.0  # seconds until a small job must be over: TensorFlow starts several times on two processors


class Job:
    """A job that was rendered and applied."""

    def __init__(self, namespace: Namespace, folder: Path, image: images.Image, part: dict[str, Any] | None = None, **fields: Any) -> None:
        self.namespace = namespace
        cluster = namespace.cluster
        kubernetes_part = {
            "namespace": namespace.name,
            "image": cluster.image(image),
            "controller": {"image": cluster.image(images.CONTROLLER)},
            "resources": {"cpu": "1", "memory": "3Gi"},
            **(part or {}),
        }
        (folder / "job.yaml").write_text(json.dumps({"name": "job", "workers": 2, **fields, "kubernetes": kubernetes_part}))
        rendered = run([TFRUN, "render", "job.yaml"], cwd=folder, check=True, capture_output=True, text=True).stdout
        for each in yaml.safe_load_all(rendered):
            kubernetes.utils.create_from_dict(cluster.api, each)

    def ended(self, succeeded: bool = True) -> str:
        """What the controller said, once its Job is over."""
        batch = self.namespace.cluster.batch

        def over() -> set[str]:
            conditions = batch.read_namespaced_job("job-controller", self.namespace.name).status.conditions or []
            return {condition.type for condition in conditions if condition.status == "True"} & {"Complete", "Failed"}

        assert self.namespace.until(over, "end of the job", TRAIN) == {"Complete" if succeeded else "Failed"}, self.namespace.story()
        return self.said()

    def said(self) -> str:
        """The controller's output."""
        (controller,) = self.namespace.pods("tfrun.dev/role=controller")
        return self.namespace.log(controller.metadata.name)

    def until_said(self, text: str) -> None:
        """Wait for a line of the controller."""
        (controller,) = self.namespace.until(lambda: self.namespace.pods("tfrun.dev/role=controller"), "controller")
        self.namespace.logged(controller.metadata.name, text, TRAIN)

    def outputs(self) -> str:
        """What all workers printed."""
        return "\n".join(self.namespace.log(pod.metadata.name) for pod in self.namespace.pods("tfrun.dev/role=worker"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the program that counts replicas × steps in its model."""
    (tmp_path / "counter.py").write_text((REPO / "examples" / "counter.py").read_text())
    return tmp_path


def test_any_image_trains(cluster: Cluster, namespace: Namespace, folder: Path) -> None:
    """The plain image has nothing of ours; the objects bring the worker, the program and the key."""
    job = Job(namespace, folder, images.TENSORFLOW, program="counter.py", args=["--steps", "50"])
    assert "succeeded: every worker's program ended with 0" in job.ended()
    assert "counter 100 = replicas 2" in job.outputs()


@pytest.fixture
def claim(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> Iterator[str]:
    """A volume claim that all workers share: a folder of this machine, on which both nodes are."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest's are its user's alone
        folder.chmod(0o755)
    size = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    owner = {"namespace": namespace.name, "name": "shared"}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(shared)}, "claimRef": owner}
    cluster.core.create_persistent_volume({"metadata": {"name": namespace.name}, "spec": {**size, **volume}})
    wanted = {**size, "volumeName": namespace.name, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.core.create_namespaced_persistent_volume_claim(namespace.name, {"metadata": {"name": "shared"}, "spec": wanted})
    yield "shared"
    cluster.core.delete_persistent_volume(namespace.name)


@pytest.mark.machine
def test_a_killed_program_and_an_evicted_worker_lose_no_step(cluster: Cluster, namespace: Namespace, folder: Path, claim: str) -> None:
    """The counter in the model ends at replicas × steps exactly, whatever happened on the way."""
    arguments = ["--steps", "600", "--every", "50", "--pause", "0.05"]
    volumes = {"volumes": [{"claim": claim, "path": "/data"}]}
    job = Job(namespace, folder, images.WORKER, volumes, program="counter.py", args=arguments, checkpoints={"directory": "/data/ckpt"})
    job.until_said("attempt 0 runs on every worker")
    first, second = namespace.members("tfrun.dev/role=worker", 2)
    namespace.logged(first.metadata.name, "checkpoint at step 50", TRAIN)
    processes = faults.processes(namespace.running(second.metadata.name))
    (program,) = (pid for pid, words in processes.items() if " launch " in words and "--standby" not in words)
    os.kill(program, signal.SIGKILL)
    job.until_said("attempt 1 runs on every worker")
    namespace.until(lambda: namespace.log(first.metadata.name).count("checkpoint at step") > 2, "another checkpoint")
    faults.evict(cluster.core, second)
    said = job.ended()
    assert "attempt 2 runs on every worker" in said
    assert "counter 1200 = replicas 2" in job.outputs()
    assert [pod.metadata.labels["job-name"] for pod in namespace.pods("tfrun.dev/role=worker,tfrun.dev/incarnation=1")] == ["job-1-1"]
