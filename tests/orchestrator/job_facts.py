"""Objects of a job as the API tells them, for tests of what is made of them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from orchestrator import names
from orchestrator.facts import Facts
from orchestrator.status import FailureRecord, ResultRecord, Status, WorkerRange

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)
MADE = "2026-11-21T11:59:00Z"  # a minute ago
Json = dict[str, Any]


def status(phase: str = "running", **fields: Any) -> Status:
    """What the controller of a job of two workers wrote."""
    workers = (WorkerRange(first=0, last=1, state="running", incarnation=0, step=340),)
    since = datetime(2026, 11, 21, 11, 57, 0, tzinfo=timezone.utc)
    return Status(**{"written": NOW, "since": since, "attempt": 0, "workers": workers, "allowed": 10, "phase": phase, **fields})


def result(ending: str, reason: str, exit_code: int = 1, **fields: Any) -> Status:
    return status("over", result=ResultRecord(ending=ending, reason=reason, exit_code=exit_code), **fields)


def failure(kind: str = "error", text: str = "raised ValueError: bad", **fields: Any) -> FailureRecord:
    return FailureRecord(**{"attempt": 0, "worker": 1, "kind": kind, "text": text, **fields})


def root(told: Status | None = None, conditions: tuple[Json, ...] = (), suspend: bool = False, **metadata: Any) -> Json:
    annotations = {**({names.STATUS: told.text()} if told else {}), **metadata.pop("annotations", {})}
    about = {
        "name": "digits-controller",
        "namespace": "ml",
        "uid": "root",
        "labels": {names.JOB_LABEL: "digits"},
        "creationTimestamp": MADE,
    }
    return {
        "metadata": {**about, "annotations": annotations, **metadata},
        "spec": {"suspend": suspend},
        "status": {"conditions": list(conditions)},
    }


def condition(kind: str, reason: str, message: str = "") -> Json:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def controller(phase: str = "Running", **state: Any) -> Json:
    return _pod("digits-controller-x", {names.ROLE_LABEL: "controller"}, phase, state or {"running": {"startedAt": MADE}})


def worker(index: int, phase: str = "Running", incarnation: int = 0, node: str = "node-0", **state: Any) -> Json:
    labels = {names.ROLE_LABEL: "worker", names.WORKER_LABEL: str(index), names.INCARNATION_LABEL: str(incarnation)}
    state = state or ({"running": {"startedAt": MADE}} if phase == "Running" else {})
    return _pod(f"digits-{index}-{incarnation}", labels, phase, state, node)


def unschedulable(pod: Json, message: str) -> Json:
    pod["spec"]["nodeName"] = ""
    pod["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    return pod


def event(uid: str, reason: str, message: str) -> Json:
    return {"metadata": {}, "involvedObject": {"uid": uid}, "reason": reason, "message": message, "lastTimestamp": MADE}


def facts(of: Json, *pods: Json, events: tuple[Json, ...] = (), workers: int = 2) -> Facts:
    group = {"metadata": {"name": "digits", "uid": "group"}, "spec": {"completions": workers}}
    return Facts(of, NOW, (of, group), pods, events, "ml")


def _pod(name: str, labels: Json, phase: str, state: Json, node: str = "node-0") -> Json:
    container = {"name": "main", "image": "registry.example/train:1", "state": state}
    return {
        "metadata": {"name": name, "uid": name, "namespace": "ml", "labels": labels, "creationTimestamp": MADE},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"memory": "8Gi"}}}]},
        "status": {"phase": phase, "podIP": "10.0.0.7", "containerStatuses": [container]},
    }
