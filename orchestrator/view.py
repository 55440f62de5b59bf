"""What `tfrun status` and `tfrun list` show: lines and rows made of facts. Pure; docs/commands.md tells what each state means."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from orchestrator import pods, status
from orchestrator.facts import Facts, Json, moment
from orchestrator.progress import duration, measured

Row = dict[str, Any]
WORKER_COLUMNS = ("worker", "pod", "node", "state", "attempt", "step", "since")
WIDE_WORKER_COLUMNS = (*WORKER_COLUMNS, "incarnation", "address", "message")
JOB_COLUMNS = ("name", "phase", "workers", "attempt", "step", "restarts", "since")


def line(facts: Facts) -> str:
    """The job in one line."""
    job = job_row(facts)
    parts = [f"{job['name']}: {job['phase'].replace('_', ' ')}"]
    if job["since"]:
        parts[0] += f" since {job['since']}"
    known = facts.status
    if known:
        parts += [f"attempt {known.attempt}", *((f"step {job['step']}",) if job["step"] else ())]
        parts += measured(known.metrics) if not known.result else []
        parts += [f"{job['restarts']} restarts spent"]
        parts += [known.waiting] if known.waiting and not known.result else []
        parts += [known.result.reason] if known.result else []
    return " · ".join(parts)


def document(facts: Facts) -> Row:
    """The job for a program: what the controller wrote, the phase, and a row for each worker."""
    written = facts.status.model_dump(mode="json", exclude={"phase", "workers"}) if facts.status else {}
    return {"name": facts.name, "namespace": facts.namespace, **written, "phase": facts.phase, "workers": worker_rows(facts)}


def worker_rows(facts: Facts) -> list[Row]:
    """A row for each worker, by index."""
    ranges = facts.status.workers if facts.status else ()
    told = {worker: each for each in ranges for worker in range(each.first, each.last + 1)}
    found = facts.worker_pods
    return [_worker_row(facts, worker, found.get(worker), told.get(worker)) for worker in range(facts.workers)]


def job_row(facts: Facts) -> Row:
    """One job of a list."""
    known = facts.status
    since = (known.since if known else None) or moment(facts.root["metadata"].get("creationTimestamp"))
    return {
        "namespace": facts.namespace,
        "name": facts.name,
        "phase": facts.phase,
        "workers": facts.workers or "",
        "attempt": known.attempt if known else "",
        "step": _step(known.step, known.total) if known else "",
        "restarts": f"{known.restarts}/{known.allowed}" if known else "",
        "since": age(since, facts.now),
    }


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, such as "12 s"; a clock that is behind the cluster's tells of no time before the beginning."""
    return duration(max(0.0, round((now - since).total_seconds()))).replace(".0 s", " s") if since else ""


def state_of(pod: Json | None, told: status.WorkerRange | None) -> str:
    """A worker in one word: what its pod keeps from running, else what its agent is at."""
    if pod is None:
        return told.state if told else "no pod"
    if pods.is_leaving(pod):
        return "leaving"
    if pods.has_ended(pod):
        return "done" if pod["status"]["phase"] == "Succeeded" else "ended"
    if pod.get("status", {}).get("phase") == "Running":
        return told.state if told and told.incarnation == pods.identity(pod)[1] else "joining"
    return _not_running(pod)


def _not_running(pod: Json) -> str:
    if not pod.get("spec", {}).get("nodeName"):
        return "unschedulable" if pods.trouble(pod) else "pending"
    for container in pod.get("status", {}).get("containerStatuses", []):
        reason = container.get("state", {}).get("waiting", {}).get("reason", "")
        if reason and pods.trouble(pod):
            return str(reason)  # in the cluster's own word, to look up
    return "starting"


def _worker_row(facts: Facts, worker: int, pod: Json | None, told: status.WorkerRange | None) -> Row:
    at = pod.get("status", {}) if pod else {}
    return {
        "worker": worker,
        "pod": pod["metadata"]["name"] if pod else "",
        "node": pod["spec"].get("nodeName", "") if pod else "",
        "state": state_of(pod, told),
        "attempt": facts.status.attempt if facts.status and told and told.state in ("ready", "running", "done", "ending") else "",
        "step": told.step if told and told.step is not None else "",
        "since": age(since(pod), facts.now) if pod else "",
        "incarnation": pods.identity(pod)[1] if pod else told.incarnation if told else 0,
        "address": at.get("podIP", ""),
        "message": (pods.ending(pod) if at.get("phase") == "Failed" else pods.trouble(pod)) if pod else "",
    }


def since(pod: Json) -> datetime | None:
    """When its container ended, else began, else the pod was made."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        state = container.get("state", {})
        found = state.get("terminated", {}).get("finishedAt") or state.get("running", {}).get("startedAt")
        if found:
            return moment(found)
    return moment(pod["metadata"].get("creationTimestamp"))


def _step(step: int | None, total: int | None) -> str:
    return "" if step is None else f"{step}/{total}" if total else str(step)
