"""What a pod's own status tells, as parts of sentences: why it does not run yet, how it ended. Pure; a pod is the API's JSON."""

from __future__ import annotations

from typing import Any

from orchestrator import names

Pod = dict[str, Any]
ENDED = ("Succeeded", "Failed")
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# Reasons of a waiting container that are a phase of every start, and no trouble.
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError")


def identity(pod: Pod) -> tuple[int, int]:
    """(worker, incarnation) of a worker's pod."""
    labels = pod["metadata"]["labels"]
    return int(labels.get(names.WORKER_LABEL) or labels[INDEX_LABEL]), int(labels[names.INCARNATION_LABEL])


def has_ended(pod: Pod) -> bool:
    """Whether nothing of it runs any more."""
    return pod.get("status", {}).get("phase") in ENDED


def is_leaving(pod: Pod) -> bool:
    """Whether it was told to go and is not gone."""
    return "deletionTimestamp" in pod["metadata"] and not has_ended(pod)


def trouble(pod: Pod) -> str:
    """Why it does not run yet, as "its pod …"; empty while all goes as it should."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"its pod can't be scheduled ({condition.get('message') or condition.get('reason')})"
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") in _IMAGE:
            said = _short(waiting.get("message", ""))
            return f"its pod has no image {container['image']} ({waiting['reason']}{f': {said}' if said else ''})"
        if waiting and waiting.get("reason") not in _ON_ITS_WAY:
            return f"its pod can't start ({waiting.get('reason')}: {_short(waiting.get('message', ''))})"
    return ""


def disruption(pod: Pod) -> str:
    """Why the cluster takes it away, as "its pod …"; empty if it does not. Evictions, preemption by a more important pod, a lost node."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            verb = {"PreemptionByScheduler": "preempted", "DeletionByTaintManager": "taken off a lost or tainted node"}
            said = condition.get("message") or condition.get("reason")
            return f"its pod was {verb.get(condition.get('reason'), 'evicted')} ({said})"
    return ""


def ran_out_of_memory(pod: Pod) -> bool:
    """Whether the kernel ended it for its memory limit."""
    return any(each.get("state", {}).get("terminated", {}).get("reason") == "OOMKilled" for each in _containers(pod))


def ending(pod: Pod) -> str:
    """How it ended, as "its pod …"."""
    taken = disruption(pod)
    if taken:
        return taken
    for container in _containers(pod):
        ended = container.get("state", {}).get("terminated")
        if ended and ended.get("reason") == "OOMKilled":
            return f"its pod ran out of memory (OOMKilled, limit {_memory(pod)}); give it more in kubernetes.resources.memory"
        if ended:
            said = ended.get("message", "").strip().rpartition("\n")[2]
            return f"its pod ended with code {ended['exitCode']} ({said or ended.get('reason')})"
    status = pod.get("status", {})
    return f"its pod is gone ({status.get('message') or status.get('reason') or 'deleted'})"


def _containers(pod: Pod) -> list[dict[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _memory(pod: Pod) -> str:
    limits = [container.get("resources", {}).get("limits", {}).get("memory") for container in pod["spec"]["containers"]]
    return next(filter(None, limits), "of its node")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
