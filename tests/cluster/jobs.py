"""A job on the test cluster, and what can be asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import kubernetes
import psutil
import yaml
from kubernetes.client import V1Pod

from tests.cluster import faults, images
from tests.cluster.objects import Namespace
from tests.conftest import TFRUN

SMALL = {"resources": {"cpu": "100m", "memory": "64Mi"}}  # for programs without TensorFlow
TRAIN = 240.0  # seconds until a small job must be over: TensorFlow starts several times on two processors


class Job:
    """A job that was rendered and applied."""

    def __init__(
        self,
        namespace: Namespace,
        folder: Path,
        image: images.Image,
        part: dict[str, Any] | None = None,
        change: Callable[[dict[str, Any]], dict[str, Any]] = lambda each: each,
        **fields: Any,
    ) -> None:
        """part: more of the job file's `kubernetes`; change: what is done to each object before it is applied."""
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
            kubernetes.utils.create_from_dict(cluster.api, change(each))

    def ended(self, succeeded: bool = True) -> str:
        """What the controller said, once its Job is over."""
        batch = self.namespace.cluster.batch

        def over() -> set[str]:
            conditions = batch.read_namespaced_job("job-controller", self.namespace.name).status.conditions or []
            return {condition.type for condition in conditions if condition.status == "True"} & {"Complete", "Failed"}

        assert self.namespace.until(over, "end of the job", TRAIN) == {"Complete" if succeeded else "Failed"}, self.namespace.story()
        return self.said()

    def workers(self) -> list[V1Pod]:
        """The pods of the workers."""
        return self.namespace.pods("tfrun.dev/role=worker")

    def program(self, worker: V1Pod) -> int:
        """The process of a worker's program, as this machine numbers it: a standby is always younger than what it stands by."""
        processes = faults.processes(self.namespace.running(worker.metadata.name))
        return min((pid for pid, words in processes.items() if " launch " in words), key=lambda pid: psutil.Process(pid).create_time())

    def said(self) -> str:
        """The controller's output."""
        return "\n".join(self.namespace.log(pod.metadata.name) for pod in self.namespace.pods("tfrun.dev/role=controller"))

    def status(self) -> dict[str, Any]:
        """The status document."""
        annotations = self.namespace.cluster.batch.read_namespaced_job("job-controller", self.namespace.name).metadata.annotations
        return dict(json.loads((annotations or {}).get("tfrun.dev/status", '{"phase": "", "attempt": 0}')))

    def until_said(self, text: str) -> None:
        """Wait for a line of the controller."""
        self.namespace.until(lambda: text in self.said(), f"{text!r} of a controller", TRAIN)

    def output(self, worker: int) -> str:
        """What all incarnations of one worker printed."""
        first, later = f"batch.kubernetes.io/job-completion-index={worker}", f"tfrun.dev/worker={worker}"
        pods = [*self.namespace.pods(f"tfrun.dev/incarnation=0,{first}"), *self.namespace.pods(later)]
        return "\n".join(self.namespace.log(pod.metadata.name) for pod in pods)

    def outputs(self) -> str:
        """What all workers printed."""
        return "\n".join(self.namespace.log(pod.metadata.name) for pod in self.namespace.pods("tfrun.dev/role=worker"))
