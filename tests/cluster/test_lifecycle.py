"""The cluster itself: starting twice, repair, one cluster a machine, who can reach it, simulated nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster import cluster as whole
from tests.cluster import images, layout, machine, simulated
from tests.cluster.manifests import pod
from tests.cluster.objects import Cluster, Namespace
from tests.cluster.supervise import ClusterError, Component, Supervisor

pytestmark = [pytest.mark.machine, pytest.mark.timeout(300)]

NODES = 50
SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """One of its own, whose components are ended with the test."""
    made = Supervisor(tmp_path)
    yield made
    for name in made.names():
        made.end(name)


def test_a_component_is_started_once(supervisor: Supervisor) -> None:
    """Starting it twice leaves it alone; after a crash, or changed, it is started again."""
    component = Component("sleeper", SLEEP, lambda: True)
    assert supervisor.start(component)
    first = supervisor.process("sleeper")
    assert not supervisor.start(component)
    assert supervisor.process("sleeper") == first
    first.kill()
    first.wait()
    assert supervisor.start(component)
    second = supervisor.process("sleeper")
    assert supervisor.start(Component("sleeper", (*SLEEP, "changed"), lambda: True))
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE


def test_a_component_that_ends_is_told_with_its_last_words(supervisor: Supervisor) -> None:
    """Not waited for until the deadline."""
    with pytest.raises(ClusterError, match=r"failing ended: no such luck \(more in .*failing.log\)"):
        supervisor.start(Component("failing", (sys.executable, "-c", "import sys; sys.exit('no such luck')"), lambda: False))


def test_a_component_that_never_gets_ready_is_told(supervisor: Supervisor) -> None:
    """With its name, at its deadline."""
    with pytest.raises(ClusterError, match=r"sleeper is not ready after 0\.2 s; see .*sleeper\.log"):
        supervisor.start(Component("sleeper", SLEEP, lambda: False, patience=0.2))


def test_a_second_checkout_is_told_why_not(tmp_path: Path) -> None:
    """While the first one's cluster is up; when it is not, the machine is free for the second."""
    first, second, link = tmp_path / "first" / "state", tmp_path / "second" / "state", tmp_path / "claim"
    supervisor = Supervisor(first)
    supervisor.start(Component("sleeper", SLEEP, lambda: True))
    machine.claim(first, link)
    machine.claim(first, link)
    with pytest.raises(
        ClusterError, match=f"this machine holds one test cluster, and that of {first.parent} is up; run `make cluster-down`"
    ):
        machine.claim(second, link)
    supervisor.end("sleeper")
    machine.claim(second, link)
    assert link.readlink() == second


def test_nobody_outside_the_machine_can_ask(cluster: Cluster) -> None:
    """Every port that the cluster's own programs listen on is at an address that only this machine has."""
    supervisor = Supervisor(layout.STATE)
    mine = {"127.0.0.1", "::1", layout.API, layout.DNS, *(node.address for node in layout.NODES)}
    seen = {}
    for name in supervisor.names():
        for listening in supervisor.process(name).net_connections():
            if listening.status == psutil.CONN_LISTEN:
                seen[f"{name} {listening.laddr.port}"] = listening.laddr.ip
    assert set(seen.values()) <= mine, seen
    assert f"apiserver {layout.API_PORT}" in seen


def test_up_repairs_what_has_crashed(cluster: Cluster, namespace: Namespace) -> None:
    """Every component is killed; `up` brings them back, the pods are still there, and new ones start."""
    namespace.start(pod("before", cluster.image(images.TENSORFLOW), "sleep", "1000"))
    before = namespace.running("before")
    supervisor = Supervisor(layout.STATE)
    crashed = supervisor.names()
    for name in crashed:
        supervisor.process(name).kill()
    said: list[str] = []
    whole.up(said.append)
    assert len(said) == 1, said  # nothing was built or loaded anew
    assert all(supervisor.process(name) for name in crashed)
    namespace.start(pod("after", cluster.image(images.TENSORFLOW), "true"))
    assert namespace.ended("after").status.phase == "Succeeded", namespace.story()
    assert namespace.running("before").status.container_statuses[0].container_id == before.status.container_statuses[0].container_id
    started = {name: supervisor.process(name) for name in supervisor.names()}
    whole.up(said.append)
    assert {name: supervisor.process(name) for name in supervisor.names()} == started


def test_simulated_nodes_run_pods_for_scale(cluster: Cluster, namespace: Namespace) -> None:
    """Many nodes, an Indexed Job with one pod on each; nodes that say nothing any more count as lost."""
    there = len(cluster.core.list_node(label_selector=simulated.LABEL).items)
    supervisor = Supervisor(layout.STATE)
    supervisor.start(simulated.kwok())
    simulated.nodes(NODES)
    try:
        _run_on_each(cluster, namespace)
    finally:
        simulated.nodes(there)
        if not there:
            supervisor.end("kwok")


def _run_on_each(cluster: Cluster, namespace: Namespace) -> None:
    tolerations = [{"key": simulated.LABEL, "operator": "Exists"}]
    wide = pod("wide", "localhost/nothing", "true", nodeSelector={simulated.LABEL: "true"}, tolerations=tolerations)
    same = {"matchLabels": wide["metadata"]["labels"]}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": same}
    template = {"metadata": wide["metadata"], "spec": {**wide["spec"], "topologySpreadConstraints": [spread]}}
    job = {"completions": NODES, "parallelism": NODES, "completionMode": "Indexed", "template": template}
    cluster.batch.create_namespaced_job(namespace.name, {"metadata": {"name": "wide"}, "spec": job})
    namespace.until(lambda: sum(each.status.phase == "Running" for each in namespace.pods()) == NODES, f"{NODES} running pods")
    Supervisor(layout.STATE).end("kwok")
    namespace.until(lambda: "Unknown" in _readiness(cluster), "lost node")


def _readiness(cluster: Cluster) -> set[str]:
    nodes = cluster.core.list_node(label_selector=simulated.LABEL).items
    return {condition.status for node in nodes for condition in node.status.conditions if condition.type == "Ready"}


@pytest.mark.skipif(os.geteuid() != 0, reason="the refusal of other users is tested by becoming one, which only root can")
def test_other_users_are_refused() -> None:
    """With the reason, before anything is made."""
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            machine.check()
        except ClusterError as e:
            os._exit(0 if "which only root may; run it as root" in str(e) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
