"""A job on a real cluster: rendered, applied, trained, recovered."""

from __future__ import annotations

import json
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

    def __init__(self, namespace: Namespace, folder: Path, image: images.Image, **fields: Any) -> None:
        self.namespace = namespace
        cluster = namespace.cluster
        part = {
            "namespace": namespace.name,
            "image": cluster.image(image),
            "controller": {"image": cluster.image(images.CONTROLLER)},
            "resources": {"cpu": "200m", "memory": "3Gi"},
        }
        (folder / "job.yaml").write_text(json.dumps({"name": "job", "workers": 2, **fields, "kubernetes": part}))
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
