"""The cluster that the tests of this folder use: the one of `make cluster`, or that of TFRUN_TEST_KUBECONFIG."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import layout
from tests.cluster.objects import Cluster, Namespace

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
