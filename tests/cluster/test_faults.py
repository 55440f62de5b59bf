"""Each fault that later tests rely on really happens to a real pod, and ends when it is told to."""

from __future__ import annotations

import time

import pytest
from kubernetes.client import V1Pod
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.cluster import control_plane, faults, images
from tests.cluster.manifests import group, make_group, pod
from tests.cluster.objects import Cluster, Namespace

pytestmark = pytest.mark.timeout(300)

# Counts for ever; the child is a second process in the same container.
COUNT = """
import itertools, subprocess, time
subprocess.Popen(["sleep", "1000"])
for i in itertools.count():
    print(i, flush=True)
    time.sleep(0.1)
"""
# Answers whatever comes; and one that asks twice a second and prints the answers.
SERVE = "import socket\ns = socket.create_server(('', 2222))\nwhile True:\n    s.accept()[0].sendall(b'here')"
ASK = """
import socket, sys, time
for i in range(10000):
    try:
        print(i, socket.create_connection((sys.argv[1], 2222), timeout=1).recv(4), flush=True)
    except OSError as e:
        print(i, type(e).__name__, flush=True)
    time.sleep(0.5)
"""


@pytest.fixture
def counting(cluster: Cluster, namespace: Namespace) -> V1Pod:
    """A pod that prints numbers, after the first of them."""
    namespace.start(pod("count", cluster.image(images.TENSORFLOW), "python3", "-c", COUNT))
    namespace.logged("count", "3\n")
    return namespace.running("count")


def test_an_evicted_pod_says_so(cluster: Cluster, namespace: Namespace) -> None:
    """Eviction of one index: it fails for good with DisruptionTarget, and the other index is left alone."""
    make_group(namespace, group("group", cluster.image(images.TENSORFLOW), "sleep", "1000"))
    names = [each.metadata.name for each in namespace.members("app=group", 2)]
    first, second = (namespace.running(name) for name in names)
    faults.evict(cluster.core, first, grace=0)
    failed = namespace.until(lambda: cluster.batch.read_namespaced_job("group", namespace.name).status.failed_indexes, "failed index")
    assert failed == "0"
    assert namespace.pod(second.metadata.name).status.phase == "Running"
    conditions = [c for each in namespace.pods() for c in each.status.conditions if c.type == "DisruptionTarget"]
    assert all(condition.reason == "EvictionByEvictionAPI" for condition in conditions)


def test_a_deleted_pod_is_gone(cluster: Cluster, namespace: Namespace, counting: V1Pod) -> None:
    """Deletion, with SIGTERM and the grace period."""
    cluster.core.delete_namespaced_pod("count", namespace.name)
    namespace.until(lambda: not namespace.pods(), "end of the pod")


@pytest.mark.machine
def test_a_process_in_a_pod_is_killed(namespace: Namespace, counting: V1Pod) -> None:
    """A child alone, then the first process, whose end is the pod's."""
    faults.kill(counting, "sleep 1000")
    assert namespace.pod("count").status.phase == "Running"
    faults.kill(counting, "python3")
    ended = namespace.ended("count")
    assert ended.status.container_statuses[0].state.terminated.exit_code == 137


@pytest.mark.machine
def test_a_frozen_pod_stands_still(namespace: Namespace, counting: V1Pod) -> None:
    """The freezer stops it between two instructions; nothing of it sees a signal; afterwards it goes on."""
    with faults.frozen(counting):
        before = namespace.log("count")
        time.sleep(1)  # ten numbers, if it were not frozen
        assert namespace.log("count") == before
    namespace.logged("count", f"\n{len(before.splitlines()) + 5}\n")


@pytest.mark.machine
def test_a_network_is_cut_between_two_pods(cluster: Cluster, namespace: Namespace) -> None:
    """Packets vanish: no refusal, no reset; afterwards they pass again."""
    image = cluster.image(images.TENSORFLOW)
    namespace.start(pod("server", image, "python3", "-c", SERVE))
    server = namespace.running("server")
    namespace.start(pod("asker", image, "python3", "-c", ASK, server.status.pod_ip))
    namespace.logged("asker", "b'here'")
    with faults.network_cut(server, namespace.pod("asker")):
        namespace.logged("asker", "TimeoutError")
    again = namespace.log("asker").count("b'here'")
    namespace.until(lambda: namespace.log("asker").count("b'here'") > again, "answer after the cut")


@pytest.mark.machine
def test_a_node_is_lost_and_comes_back(cluster: Cluster, namespace: Namespace, counting: V1Pod) -> None:
    """Without its kubelet a node counts as lost; its pods go on counting, and are the same when it is back."""
    node = counting.spec.node_name

    def ready() -> str:
        return next(c.status for c in cluster.core.read_node(node).status.conditions if c.type == "Ready")

    with faults.kubelet_gone(node):
        namespace.until(lambda: ready() == "Unknown", "lost node")
        assert faults.processes(counting)
    assert ready() == "True"
    assert namespace.running("count").metadata.uid == counting.metadata.uid
    assert namespace.pod("count").status.container_statuses[0].restart_count == 0


@pytest.mark.machine
def test_the_api_server_is_gone_for_some_seconds(cluster: Cluster, namespace: Namespace, counting: V1Pod) -> None:
    """Connections are refused, pods go on, and afterwards everything is there again."""
    with faults.api_gone():
        with pytest.raises(HTTPError):
            namespace.pod("count")
        assert faults.processes(counting)
    assert namespace.pod("count").status.phase == "Running"


@pytest.mark.machine
def test_the_api_server_does_not_answer(namespace: Namespace, counting: V1Pod) -> None:
    """Connections are taken and nothing comes: only a client with a deadline notices."""
    with faults.api_frozen(), pytest.raises(HTTPError):
        namespace.cluster.core.read_namespaced_pod("count", namespace.name, _request_timeout=1)
    namespace.until(lambda: control_plane.answers("/readyz"), "ready API server")
    assert namespace.pod("count").status.phase == "Running"


def test_a_pod_that_cannot_be_pulled_waits(cluster: Cluster, namespace: Namespace) -> None:
    """An image that is nowhere: the pod waits with the reason."""
    namespace.start(pod("pulling", "localhost/tfrun-test/nowhere:1", "true"))

    def reason() -> str:
        statuses = namespace.pod("pulling").status.container_statuses
        return statuses[0].state.waiting.reason if statuses and statuses[0].state.waiting else ""

    namespace.until(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), "failed pull")


def test_no_permission_is_told(cluster: Cluster, namespace: Namespace) -> None:
    """A service account without a role may do nothing, and the answer names verb and resource."""
    token = cluster.core.create_namespaced_service_account_token("default", namespace.name, {"spec": {"expirationSeconds": 600}})
    with pytest.raises(ApiException) as refused:
        cluster.as_holder_of(token.status.token).core.list_namespaced_pod(namespace.name)
    assert refused.value.status == 403
    assert f'User \\"system:serviceaccount:{namespace.name}:default\\" cannot list resource \\"pods\\"' in refused.value.body
