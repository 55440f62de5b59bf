"""What the benchmarks on a cluster share: namespaces of their own, a folder for all workers, and how a job gets there."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from benchmarks.measure import PROGRAMS, TFRUN
from tests.cluster import images, layout
from tests.cluster.objects import OURS, Cluster, Namespace

T = TypeVar("T")

NAME = "bench"
STEPS = PROGRAMS / "cluster_steps.py"
IDLE = PROGRAMS / "cluster_idle.py"
RESTARTS = 1000  # more than any benchmark needs
RESOURCES = {"cpu": "1", "memory": "3Gi"}
END = 120.0  # seconds until a namespace must be gone
KUBECTL = (layout.BIN / "kubectl", f"--kubeconfig={layout.kubeconfig(layout.ADMIN)}")
QUIET = 3.0  # seconds in which the kubelets end what ran there


@cache
def cluster() -> Cluster:
    """The one of `make cluster`: these benchmarks need the processes and the logs of its nodes at hand."""
    return Cluster(layout.kubeconfig(layout.ADMIN))


@contextmanager
def namespace() -> Iterator[Namespace]:
    """A namespace for one job; afterwards it is gone, with everything in it."""
    made = Namespace.create(cluster(), f"bench-{uuid.uuid4().hex[:8]}")
    cluster().core.patch_namespace(made.name, {"metadata": {"labels": {OURS: None}}})  # tests that end meanwhile don't wait for it
    try:
        yield made
    finally:
        # A Job that backs off would keep its pods until it looks again, and they the namespace.
        _insist(lambda: cluster().batch.delete_collection_namespaced_job(made.name, propagation_policy="Background"))
        _insist(made.delete)
        made.until(lambda: _insist(lambda: _gone(made.name)), "end of the namespace", END)
        time.sleep(QUIET)


@contextmanager
def shared_namespace() -> Iterator[tuple[Namespace, Path]]:
    """A namespace, and a folder of this machine, on which all nodes are; the pods get it at /data with the claim "shared"."""
    with TemporaryDirectory(prefix="tfrun-bench-") as name, namespace() as made:
        Path(name).chmod(0o755)
        folder = Path(name) / "shared"
        folder.mkdir()
        folder.chmod(0o777)
        core, size = made.cluster.core, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        owner = {"namespace": made.name, "name": "shared"}
        volume = {**size, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, "claimRef": owner}
        core.create_persistent_volume({"metadata": {"name": made.name}, "spec": volume})
        try:
            wanted = {**size, "volumeName": made.name, "resources": {"requests": {"storage": "1Gi"}}}
            core.create_namespaced_persistent_volume_claim(made.name, {"metadata": {"name": "shared"}, "spec": wanted})
            made.until(lambda: core.read_namespaced_persistent_volume_claim("shared", made.name).status.phase == "Bound", "bound claim")
            yield made, folder
        finally:
            _insist(lambda: core.delete_persistent_volume(made.name))


def render(to: Namespace, *arguments: object, **fields: Any) -> str:
    """A job of tfrun as YAML. fields: see job_file."""
    with job_file(to, *arguments, **fields) as file:
        return subprocess.run([TFRUN, "render", file.name], cwd=file.parent, check=True, stdout=subprocess.PIPE, text=True).stdout


def apply(text: str) -> float:
    """`kubectl apply`; returns when it was started, by the monotonic clock."""
    start = time.monotonic()
    subprocess.run([*KUBECTL, "apply", "-f", "-"], input=text, check=True, stdout=subprocess.DEVNULL, text=True)
    return start


def submit(file: Path) -> float:
    """`tfrun submit`; returns when it was started, by the monotonic clock."""
    start = time.monotonic()
    command = [TFRUN, "submit", f"--kubeconfig={cluster().kubeconfig}", file.name]
    subprocess.run(command, cwd=file.parent, check=True, stdout=subprocess.DEVNULL)
    return start


@contextmanager
def job_file(
    to: Namespace, *arguments: object, program: Path = STEPS, workers: int = 2, shared: bool = False, **part: Any
) -> Iterator[Path]:
    """A job file beside its program, whose path begins there. shared: with the shared folder. part: of what it says about Kubernetes."""
    kubernetes = {
        "namespace": to.name,
        "image": to.cluster.image(images.TENSORFLOW),
        "controller": {"image": to.cluster.image(images.CONTROLLER)},
        "resources": RESOURCES,
        "volumes": [{"claim": "shared", "path": "/data"}] if shared else [],
        **part,
    }
    words = [str(word) for word in arguments]
    job = {
        "name": NAME,
        "program": program.name,
        "args": words,
        "workers": workers,
        "restarts": {"max": RESTARTS},
        "kubernetes": kubernetes,
    }
    with TemporaryDirectory(prefix="tfrun-bench-") as folder:
        (Path(folder) / program.name).write_bytes(program.read_bytes())
        file = Path(folder) / "job.yaml"
        file.write_text(json.dumps(job))  # JSON is YAML
        yield file


def _insist(request: Callable[[], T]) -> T:
    """Ask again while nobody answers: nothing may be left behind."""
    deadline = time.monotonic() + END
    while True:
        try:
            return request()
        except HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _gone(name: str) -> bool:
    try:
        cluster().core.read_namespace(name)
    except ApiException as e:
        return bool(e.status == 404)
    return False
