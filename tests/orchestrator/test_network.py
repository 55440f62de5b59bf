"""F45: who reaches a job's pods, by a model of NetworkPolicy (kubernetes.io/docs/concepts/services-networking/network-policies).

A model, because the test cluster's pod network enforces no policies. What the model does not know, it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import names, static
from orchestrator.manifests import job_objects, worker_objects
from tests.orchestrator.test_manifests import job

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: Mapping[str, str]


def reaches(policies: list[Manifest], source: Pod, target: Pod, port: int) -> bool:
    """Whether a connection is let in: if any policy selects the target, one of its rules must name the source and the port."""
    selecting = [p for p in policies if p["metadata"]["namespace"] == target.namespace and selects(p["spec"]["podSelector"], target)]
    rules = [(p["metadata"]["namespace"], rule) for p in selecting for rule in p["spec"]["ingress"]]
    return not selecting or any(lets_in(namespace, rule, source, port) for namespace, rule in rules)


def selects(selector: Manifest, pod: Pod) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return all(pod.labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def lets_in(namespace: str, rule: Manifest, source: Pod, port: int) -> bool:
    """A peer without a namespaceSelector means pods of the policy's own namespace."""
    assert rule.keys() <= {"from", "ports"}
    assert all(peer.keys() == {"podSelector"} for peer in rule["from"])
    known = any(source.namespace == namespace and selects(peer["podSelector"], source) for peer in rule["from"])
    return known and ("ports" not in rule or any(each["port"] == port and each["protocol"] == "TCP" for each in rule["ports"]))


def policies(objects: list[Manifest]) -> list[Manifest]:
    found = [each for each in objects if each["kind"] == "NetworkPolicy"]
    assert all(each["spec"]["policyTypes"] == ["Ingress"] for each in found)
    return found


def pods(objects: list[Manifest], role: str) -> list[Pod]:
    """One for each Job of a role."""
    jobs = [each for each in objects if each["kind"] == "Job"]
    made = [Pod(each["metadata"]["namespace"], each["spec"]["template"]["metadata"]["labels"]) for each in jobs]
    return [pod for pod in made if pod.labels[names.ROLE_LABEL] == role]


def all_of(name: str, namespace: str) -> list[Manifest]:
    made = job(name=name, kubernetes={"namespace": namespace})
    return [*job_objects(made, None), *worker_objects(made, 1, 4)]


OURS = all_of("digits", "team")
STATIC = static.job_objects(job(kubernetes={"namespace": "team"}), None)
WORKERS, (CONTROLLER,) = pods(OURS, "worker"), pods(OURS, "controller")
PORTS = st.sampled_from([names.PORT, names.STATIC_PORT]) | st.integers(1, 65535)


def test_who_must_talk_can() -> None:
    """Workers reach each other at any port (TensorFlow's change) and the controller at its own; those of a static set each other."""
    for source in WORKERS:
        assert all(reaches(policies(OURS), source, target, port) for target in WORKERS for port in (2222, 40_000))
        assert reaches(policies(OURS), source, CONTROLLER, names.PORT)
    members = pods(STATIC, "worker")
    assert len(members) == 2
    assert all(reaches(policies(STATIC), source, target, names.STATIC_PORT) for source in members for target in members)


def test_no_more_than_that() -> None:
    """The controller reaches no worker, and the controller has no other port."""
    assert not any(reaches(policies(OURS), CONTROLLER, target, 2222) for target in WORKERS)
    assert not any(reaches(policies(OURS), source, CONTROLLER, port) for source in (*WORKERS, CONTROLLER) for port in (1, 80, 2222))


@pytest.mark.parametrize("others", [all_of("other", "team"), all_of("digits-1", "team"), all_of("digits", "elsewhere")])
@given(port=PORTS)
@settings(max_examples=50, deadline=None)
def test_another_job_reaches_nothing(others: list[Manifest], port: int) -> None:
    """One in the same namespace, one whose name begins alike, one of the same name elsewhere; and the other way round."""
    strangers = [*pods(others, "worker"), *pods(others, "controller")]
    both = [*policies(OURS), *policies(STATIC), *policies(others)]
    members = [*WORKERS, CONTROLLER, *pods(STATIC, "worker")]
    assert not any(reaches(both, source, target, port) for source in strangers for target in members)
    assert not any(reaches(both, source, target, port) for source in members for target in strangers)


LABELS = sorted({*CONTROLLER.labels, *WORKERS[-1].labels, "app"})
VALUES = sorted({*CONTROLLER.labels.values(), *WORKERS[-1].labels.values(), "other"})


@given(st.sampled_from(["team", "elsewhere"]), st.dictionaries(st.sampled_from(LABELS), st.sampled_from(VALUES)), PORTS)
@settings(max_examples=500, deadline=None)
def test_a_pod_outside_reaches_nothing(namespace: str, labels: dict[str, str], port: int) -> None:
    """Whatever its labels are, unless it is in the job's namespace and says that it is a worker of this very job."""
    stranger = Pod(namespace, labels)
    member = namespace == "team" and labels.get(names.JOB_LABEL) == "digits" and labels.get(names.ROLE_LABEL) == "worker"
    for objects, targets in ((OURS, [*WORKERS, CONTROLLER]), (STATIC, pods(STATIC, "worker"))):
        assert member or not any(reaches(policies(objects), stranger, target, port) for target in targets)


def test_no_service_leaves_the_cluster() -> None:
    """Never a LoadBalancer, a NodePort, an external address; and each leads to pods of its job alone."""
    services = [each for each in (*OURS, *STATIC) if each["kind"] == "Service"]
    assert len(services) == 2
    for each in services:
        assert each["spec"].keys() <= {"clusterIP", "publishNotReadyAddresses", "selector", "ports"}
        assert all(port.keys() <= {"name", "port"} for port in each["spec"]["ports"])
        assert each["spec"]["selector"][names.JOB_LABEL] == "digits"
