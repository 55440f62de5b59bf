"""What a job waits for, or why it ended, in plain sentences with the next thing to do. Pure: facts in, text out."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator import names, pods, refusals, view
from orchestrator.facts import Facts, Json, end_of, has_begun, told_at
from orchestrator.group import indices
from orchestrator.status import FailureRecord

_RECENT = 3  # failures that are told
# What to do about a failure, by its kind (worker_image/protocol.py and group.Failure).
_REMEDIES = {
    "memory": "give the workers more in kubernetes.resources.memory, or the program less to hold",
    "frozen": "the stacks of its threads are in its output",
    "stalled": "the stacks of its threads are in its output; deadlines.progress says how long a pause may be",
}


def text(facts: Facts) -> str:
    """The paragraph: the first of these that has something to say, from the end of a job's life to its beginning."""
    stages: tuple[Callable[[Facts], str], ...] = (_deleted, ended, _stopping, _suspended, _controller, _absent, _stuck, _group)
    return next(filter(None, (stage(facts) for stage in stages)))


def ended(facts: Facts) -> str:
    """How it ended; empty while it is not over."""
    how = end_of(facts.root)
    if not how:
        return ""
    reason = facts.status.result.reason if facts.status and facts.status.result else _verdict(facts)
    remove = f"{facts.command('stop')} removes it"
    if how == "succeeded":
        return _sentences(
            f"{facts.name} succeeded: {reason or 'its controller ended with 0'}", f"{facts.command('logs')} shows its output, {remove}"
        )
    words = {"not_launched": "could not be launched", "deadline": "ran into a deadline", "stopped": "was stopped"}.get(how, "failed")
    return _sentences(f"{facts.name} {words}: {reason}", *_failures(facts), f"{_look(facts)}, {remove}")


def _deleted(facts: Facts) -> str:
    if "deletionTimestamp" not in facts.root["metadata"]:
        return ""
    return _sentences(f"{facts.name} is being deleted", f"it waits for the end of {_count(len(facts.pods), 'pod')}")


def _stopping(facts: Facts) -> str:
    if names.STOP not in facts.root["metadata"].get("annotations", {}):
        return ""
    return _sentences(
        f"{facts.name} was asked to stop",
        "its programs save and end",
        f"if that takes too long, {facts.command('stop --now')} does not wait for them",
    )


def _suspended(facts: Facts) -> str:
    if not facts.root["spec"].get("suspend"):
        return ""
    return _sentences(
        f"{facts.name} was made, but its controller was not started: a `tfrun submit` is under way, or was interrupted",
        f"submit the same job file again to finish it, or {facts.command('stop')}",
    )


def _verdict(facts: Facts) -> str:
    """What is known of the end where the controller wrote nothing."""
    pod = facts.controller_pod
    if pod and pods.has_ended(pod):
        return pods.ending(pod).replace("its pod", "its controller's pod", 1)
    said = [each for each in facts.root.get("status", {}).get("conditions", []) if each["type"] == "Failed"]
    return "".join(f"its controller's Job says {each.get('reason')}: {refusals.short(each.get('message', ''))}" for each in said[:1])


# ---- before the controller runs, and beside it ----


def _controller(facts: Facts) -> str:
    pod = facts.controller_pod
    whose = f"{facts.name} waits for its controller"
    trains = ("its workers train meanwhile",) if facts.status and facts.status.phase == "running" else ()
    if pod is None:
        refused = _not_made(facts, [facts.root]) or ("the cluster is about to make it",)
        return _sentences(f"{whose}, whose pod is not there", *trains, *refused)
    if pods.has_ended(pod):
        said = f"{facts.command('logs --controller')} shows what it said"
        return _sentences(f"{whose}: {pods.ending(pod)}", *trains, "the cluster makes a new one", said)
    return _sentences(f"{whose}", *_not_running(facts, pod, "it")) if not has_begun(pod) else ""


def _absent(facts: Facts) -> str:
    """Pods of workers that the cluster does not make."""
    missing = [worker for worker in range(facts.workers) if worker not in facts.worker_pods]
    refused = _not_made(
        facts, [job for job in facts.jobs if job is not facts.root and job["metadata"]["name"] != facts.root["metadata"]["name"]]
    )
    if not missing or not refused:
        return ""
    return _sentences(f"{facts.name} has no pod for {indices(missing)}", *refused)


def _stuck(facts: Facts) -> str:
    """Pods of workers that do not run yet, told by what keeps most of them."""
    reasons: dict[tuple[str, ...], list[int]] = {}
    for worker, pod in sorted(facts.worker_pods.items()):
        if not has_begun(pod) and not pods.has_ended(pod) and not pods.is_leaving(pod):
            reasons.setdefault(_not_running(facts, pod, "its pod"), []).append(worker)
    if not reasons:
        return ""
    (why, first), *others = sorted(reasons.items(), key=lambda item: -len(item[1]))
    more = (f"for {indices(each)}, {_of(told[0], each)}" for told, each in others[: _RECENT - 1])
    return _sentences(f"{facts.name} waits for {indices(first)}", _of(why[0], first), *why[1:], *more)


def _of(why: str, workers: list[int]) -> str:
    return why if len(workers) == 1 else why.replace("its pod", "each of their pods", 1)


def _not_made(facts: Facts, jobs: list[Json]) -> tuple[str, ...]:
    """(why, what to do) of the newest refusal to make a pod."""
    ours = {job["metadata"]["uid"] for job in jobs}
    told = [event for event in facts.events if event["involvedObject"].get("uid") in ours and event.get("reason") == "FailedCreate"]
    if not told:
        return ()
    why, remedy = refusals.explain(str(max(told, key=told_at).get("message", "")))
    return tuple(filter(None, (why, remedy)))


def _not_running(facts: Facts, pod: Json, subject: str) -> tuple[str, ...]:
    """(why, what to do) of a pod that has not begun."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            why, remedy = refusals.scheduling(condition.get("message", ""))
            return tuple(filter(None, (f"{subject} waits for a node: {why}", remedy)))
    trouble = pods.trouble(pod)
    if trouble:
        return f"{subject}{trouble.removeprefix('its pod')}", _container_remedy(trouble)
    at = view.age(view.since(pod), facts.now)
    for event in reversed([each for each in facts.events if each["involvedObject"].get("uid") == pod["metadata"]["uid"]]):
        if event.get("reason") == "Pulling":
            return f"{subject} is pulling its image, {at} after it was made", "wait, or use a smaller image"
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            said = refusals.short(str(event.get("message", "")).rpartition(" : ")[2])
            return f"{subject} has not all of its volumes ({said})", "check kubernetes.volumes and the Secrets that the job names"
    return (f"{subject} is starting since {at}",)


def _container_remedy(trouble: str) -> str:
    if "CreateContainerConfigError" in trouble:
        return "check that kubernetes.secrets names Secrets and keys that are there (`kubectl get secrets`)"
    if "has no image" in trouble:
        return "check the image's name, and kubernetes.pull_secrets if its registry asks who you are"
    return "check the image and what the job says about it"


# ---- what the controller tells ----


def _group(facts: Facts) -> str:
    known = facts.status
    if known is None:
        return _sentences(
            f"{facts.name} has begun, and its controller has not told anything yet",
            f"{facts.command('logs --controller')} shows what it says",
        )
    since = view.age(known.since, facts.now)
    last = _failures(facts)[-1:]
    if known.phase == "running":
        step = "no step reported" if known.step is None else f"step {known.step}" + (f" of {known.total}" if known.total else "")
        return _sentences(
            f"{facts.name} trains since {since}: attempt {known.attempt}, {step}", *last, f"{facts.command('logs -f')} shows its output"
        )
    what = {
        "gathering": f"gathers its workers for attempt {known.attempt} since {since}: {known.waiting or 'they are starting'}",
        "ending": f"is ending attempt {known.attempt} on every worker since {since}",
        "resuming": f"has a new controller, which asks the workers since {since} where they are",
        "over": "is over, and its controller is about to end",
    }[known.phase]
    return _sentences(f"{facts.name} {what}", *last, _look(facts))


def _failures(facts: Facts) -> list[str]:
    """The last failures, and what to do about the last of them."""
    known = facts.status.failures if facts.status else ()
    if not known:
        return []
    told = [_failure(each) for each in known[-_RECENT:]]
    last = known[-1]
    if last.kind in _REMEDIES:
        told[-1] += f"; {_REMEDIES[last.kind]}"
    left_out = len(known) - len(told)
    return [*([f"{_count(left_out, 'attempt')} failed before"] if left_out else []), *told]


def _failure(each: FailureRecord) -> str:
    at = f" ({each.place.rpartition(' at ')[2]})" if " at " in each.place else ""
    step = f" after step {each.step}" if each.step is not None else ""
    return f"attempt {each.attempt} ended because worker {each.worker} {refusals.short(each.text)}{at}{step}"


def _look(facts: Facts) -> str:
    """Where to read more: the output of the worker that failed last."""
    known = facts.status.failures if facts.status else ()
    verb = f"logs --previous --worker {known[-1].worker}" if known else "logs --controller"
    return f"{facts.command(verb)} shows more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _sentences(*parts: str) -> str:
    """Parts of a paragraph, each ended and begun as a sentence; the first keeps its beginning, which is a name."""
    first, *others = (part.rstrip(" .") for part in parts if part)
    return " ".join(f"{part}." for part in (first, *(each[:1].upper() + each[1:] for each in others)))
