"""The cluster that the tests of this folder use: the one of `make cluster`, or that of TFRUN_TEST_KUBECONFIG."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import layout
from tests.cluster.objects import Cluster, Namespace
from tests.conftest import REPO

OTHER = os.environ.get("TFRUN_TEST_KUBECONFIG")
REQUIRED = bool(os.environ.get("TFRUN_REQUIRE_CLUSTER"))  # CI: tests that would be skipped for want of a cluster fail


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "needs the machine that the cluster runs on, and TFRUN_TEST_KUBECONFIG names another cluster"
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if OTHER and item.get_closest_marker("machine"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster that answers; at the end nothing of a test is left in it."""
    found = Cluster(Path(OTHER) if OTHER else layout.kubeconfig(layout.ADMIN))
    reason = found.missing()
    if reason and (REQUIRED or OTHER):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    yield found
    found.await_no_tests()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of the test's own, in which Pod Security admission enforces `restricted`."""
    made = Namespace.create(cluster, f"test-{uuid.uuid4().hex[:8]}")
    yield made
    made.delete()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the program that counts replicas × steps in its model."""
    (tmp_path / "counter.py").write_text((REPO / "examples" / "counter.py").read_text())
    return tmp_path


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


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs that report steps and never import TensorFlow."""
    for name in ("steps.py", "waits.py"):
        (tmp_path / name).write_text((REPO / "tests" / "programs" / name).read_text())
    return tmp_path
