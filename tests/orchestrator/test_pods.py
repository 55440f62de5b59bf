"""What a pod's status says, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import pods


def pod(**status: Any) -> pods.Pod:
    spec = {"containers": [{"name": "worker", "resources": {"limits": {"memory": "3Gi"}}}]}
    labels = {"tfrun.dev/incarnation": "2", "tfrun.dev/worker": "1"}
    return {"metadata": {"name": "job-1-2", "labels": labels}, "spec": spec, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"image": "example/train:1", "state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"image": "x", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({}, ""),
        (waiting("ContainerCreating"), ""),
        (condition("PodScheduled", "True", ""), ""),
        (
            condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available"),
            "its pod can't be scheduled (0/2 nodes are available)",
        ),
        (waiting("ImagePullBackOff", "not\n found"), "its pod has no image example/train:1 (ImagePullBackOff: not found)"),
        (waiting("ErrImageNeverPull"), "its pod has no image example/train:1 (ErrImageNeverPull)"),
        (
            waiting("CreateContainerConfigError", 'secret "x" not found'),
            'its pod can\'t start (CreateContainerConfigError: secret "x" not found)',
        ),
    ],
)
def test_why_it_does_not_run_yet(status: dict[str, Any], text: str) -> None:
    """Nothing while all goes as it should; else the cluster's own reason."""
    assert pods.trouble(pod(**status)) == text


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ended(1, "Error", "Traceback\nno such file\n"), "its pod ended with code 1 (no such file)"),
        (ended(137, "Error"), "its pod ended with code 137 (Error)"),
        (ended(137, "OOMKilled"), "its pod ran out of memory (OOMKilled, limit 3Gi); give it more in kubernetes.resources.memory"),
        ({"reason": "NodeLost"}, "its pod is gone (NodeLost)"),
        ({}, "its pod is gone (deleted)"),
        (condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drain"), "its pod was evicted (drain)"),
        (condition("DisruptionTarget", "True", "PreemptionByScheduler"), "its pod was preempted (PreemptionByScheduler)"),
        (
            condition("DisruptionTarget", "True", "DeletionByTaintManager"),
            "its pod was taken off a lost or tainted node (DeletionByTaintManager)",
        ),
    ],
)
def test_how_it_ended(status: dict[str, Any], text: str) -> None:
    """What took it away comes before how its container ended."""
    assert pods.ending(pod(**status)) == text
    assert pods.ran_out_of_memory(pod(**status)) == ("OOMKilled" in text)


def test_who_it_is() -> None:
    """A replacement says so itself; a pod of the group's Job has its index from the cluster."""
    assert pods.identity(pod()) == (1, 2)
    first = pod()
    first["metadata"]["labels"] = {"tfrun.dev/incarnation": "0", "batch.kubernetes.io/job-completion-index": "7"}
    assert pods.identity(first) == (7, 0)


def test_a_long_message_is_cut() -> None:
    """A registry's answer may be a page."""
    assert len(pods.trouble(pod(**waiting("ErrImagePull", "x" * 1000)))) < 300
