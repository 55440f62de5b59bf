"""What a job waits for or why it ended: every branch, in whole sentences."""

from __future__ import annotations

import pytest

from orchestrator import names, why
from orchestrator.facts import Facts
from tests.orchestrator.job_facts import (
    condition,
    controller,
    event,
    facts,
    failure,
    result,
    root,
    status,
    unschedulable,
    worker,
)

QUOTA = 'Error creating: pods "digits-0-x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2'
CPU = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
MOUNT = 'MountVolume.SetUp failed for volume "volume-0" : secret "registry" not found'
WAITING = {"waiting": {"reason": "ContainerCreating"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/train:1"'}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "data" not found'}}
ENDED = {"terminated": {"exitCode": 4, "reason": "Error", "message": "deadline: worker 1 did not join"}}

CASES = {
    "deleted": (
        facts(root(deletionTimestamp="2026-11-21T11:59:59Z"), worker(0)),
        "digits is being deleted. It waits for the end of 1 pod.",
    ),
    "succeeded": (
        facts(root(result("succeeded", "every worker's program ended with 0", 0))),
        "digits succeeded: every worker's program ended with 0. `tfrun logs digits` shows its output, `tfrun stop digits` removes it.",
    ),
    "succeeded, nothing written": (
        facts(root(conditions=(condition("Complete", "CompletionsReached"),))),
        "digits succeeded: its controller ended with 0. `tfrun logs digits` shows its output, `tfrun stop digits` removes it.",
    ),
    "failed": (
        facts(root(result("failed", "the same failure twice", failures=(failure(place="ValueError at train.py:7"), failure(attempt=1))))),
        (
            "digits failed: the same failure twice. Attempt 0 ended because worker 1 raised ValueError: bad (train.py:7). Attempt "
            "1 ended because "
            "worker 1 raised ValueError: bad. `tfrun logs --previous --worker 1 digits` shows more, `tfrun stop digits` removes it."
        ),
    ),
    "out of memory": (
        facts(root(result("failed", "worker 1 ran out of memory", failures=(failure("memory", "ran out of memory", step=20),)))),
        (
            "digits failed: worker 1 ran out of memory. Attempt 0 ended because worker 1 ran out of memory after step 20; give "
            "the workers more in "
            "kubernetes.resources.memory, or the program less to hold. `tfrun logs --previous --worker 1 digits` shows more, "
            "`tfrun stop digits` removes it."
        ),
    ),
    "not launched": (
        facts(root(result("not_launched", "the agents of worker 0 never came up", 3))),
        (
            "digits could not be launched: the agents of worker 0 never came up. `tfrun logs --controller digits` shows more, "
            "`tfrun stop digits` removes it."
        ),
    ),
    "stopped": (
        facts(root(result("stopped", "stopped on request", 143))),
        "digits was stopped: stopped on request. `tfrun logs --controller digits` shows more, `tfrun stop digits` removes it.",
    ),
    "failed, nothing written": (
        facts(root(conditions=(condition("Failed", "PodFailurePolicy", "Container controller failed"),)), controller("Failed", **ENDED)),
        (
            "digits failed: its controller's pod ended with code 4 (deadline: worker 1 did not join). `tfrun logs --controller "
            "digits` shows more, "
            "`tfrun stop digits` removes it."
        ),
    ),
    "too long": (
        facts(root(conditions=(condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"),))),
        (
            "digits ran into a deadline: its controller's Job says DeadlineExceeded: Job was active longer than specified deadline. "
            "`tfrun logs --controller digits` shows more, `tfrun stop digits` removes it."
        ),
    ),
    "asked to stop": (
        facts(root(status(), annotations={names.STOP: "SIGTERM"}), controller(), worker(0), worker(1)),
        "digits was asked to stop. Its programs save and end. If that takes too long, `tfrun stop --now digits` does not wait for them.",
    ),
    "half submitted": (
        facts(root(suspend=True)),
        (
            "digits was made, but its controller was not started: a `tfrun submit` is under way, or was interrupted. Submit the "
            "same job file again "
            "to finish it, or `tfrun stop digits`."
        ),
    ),
    "controller beyond a quota": (
        facts(root(), events=(event("root", "FailedCreate", QUOTA),)),
        (
            "digits waits for its controller, whose pod is not there. The quota team allows pods=2, pods=2 is in use, and this "
            "needs pods=1 more. "
            "End something else in the namespace, or ask for a larger quota."
        ),
    ),
    "controller not made yet": (
        facts(root()),
        "digits waits for its controller, whose pod is not there. The cluster is about to make it.",
    ),
    "controller crashed": (
        facts(root(), controller("Failed", terminated={"exitCode": 137, "reason": "Error"})),
        (
            "digits waits for its controller: its pod ended with code 137 (Error). The cluster makes a new one. "
            "`tfrun logs --controller digits` shows what it said."
        ),
    ),
    "controller without image": (
        facts(root(), controller("Pending", **NO_IMAGE)),
        (
            "digits waits for its controller. It has no image registry.example/train:1 (ImagePullBackOff: Back-off pulling image "
            '"registry.example/train:1"). Check the image\'s name, and kubernetes.pull_secrets if its registry asks who you are.'
        ),
    ),
    "workers beyond a quota": (
        facts(root(status("gathering")), controller(), worker(0), events=(event("group", "FailedCreate", QUOTA),)),
        (
            "digits has no pod for worker 1. The quota team allows pods=2, pods=2 is in use, and this needs pods=1 more. "
            "End something else in the namespace, or ask for a larger quota."
        ),
    ),
    "workers refused by Pod Security": (
        facts(
            root(),
            controller(),
            events=(event("group", "FailedCreate", 'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'),),
        ),
        (
            "digits has no pod for workers 0 and 1. The namespace's Pod Security level restricted:latest forbids privileged. "
            "Leave that out of kubernetes.pod, or use a namespace that allows it."
        ),
    ),
    "no room": (
        facts(root(status("gathering")), controller(), worker(0), unschedulable(worker(1), CPU)),
        (
            "digits waits for worker 1. Its pod waits for a node: no node takes it (2 of 2: Insufficient cpu). "
            "Ask for less in kubernetes.resources, or wait until others end or nodes are added."
        ),
    ),
    "no image": (
        facts(root(status("gathering")), controller(), worker(0, "Pending", **NO_IMAGE), worker(1, "Pending", **NO_IMAGE)),
        (
            "digits waits for workers 0 and 1. Each of their pods has no image registry.example/train:1 (ImagePullBackOff: "
            "Back-off pulling image "
            '"registry.example/train:1"). Check the image\'s name, and kubernetes.pull_secrets if its registry asks who you are.'
        ),
    ),
    "no Secret": (
        facts(root(), controller(), worker(0, "Pending", **NO_SECRET), worker(1)),
        (
            'digits waits for worker 0. Its pod can\'t start (CreateContainerConfigError: secret "data" not found). '
            "Check that kubernetes.secrets names Secrets and keys that are there (`kubectl get secrets`)."
        ),
    ),
    "pulling": (
        facts(root(), controller(), worker(0, "Pending", **WAITING), worker(1), events=(event("digits-0-0", "Pulling", "Pulling image"),)),
        "digits waits for worker 0. Its pod is pulling its image, 1 min 0 s after it was made. Wait, or use a smaller image.",
    ),
    "no volume": (
        facts(root(), controller(), worker(0, "Pending", **WAITING), worker(1), events=(event("digits-0-0", "FailedMount", MOUNT),)),
        (
            'digits waits for worker 0. Its pod has not all of its volumes (secret "registry" not found). '
            "Check kubernetes.volumes and the Secrets that the job names."
        ),
    ),
    "starting, for different reasons": (
        facts(
            root(), controller(), worker(0, "Pending", **WAITING), worker(1, "Pending", **WAITING), unschedulable(worker(2), CPU), workers=3
        ),
        (
            "digits waits for workers 0 and 1. Each of their pods is starting since 1 min 0 s. For worker 2, its pod waits for a "
            "node: no node takes it "
            "(2 of 2: Insufficient cpu)."
        ),
    ),
    "just begun": (
        facts(root(), controller(), worker(0), worker(1)),
        "digits has begun, and its controller has not told anything yet. `tfrun logs --controller digits` shows what it says.",
    ),
    "gathering": (
        facts(
            root(status("gathering", waiting="worker 1 did not join", failures=(failure(),), attempt=1)), controller(), worker(0), worker(1)
        ),
        (
            "digits gathers its workers for attempt 1 since 3 min 0 s: worker 1 did not join. Attempt 0 ended because worker 1 "
            "raised ValueError: bad. "
            "`tfrun logs --previous --worker 1 digits` shows more."
        ),
    ),
    "training": (
        facts(
            root(status(step=340, total=600, attempt=1, failures=(failure("frozen", "was stopped"),))), controller(), worker(0), worker(1)
        ),
        (
            "digits trains since 3 min 0 s: attempt 1, step 340 of 600. Attempt 0 ended because worker 1 was stopped; the stacks "
            "of its threads are in "
            "its output. `tfrun logs -f digits` shows its output."
        ),
    ),
    "training without steps": (
        facts(root(status()), controller(), worker(0), worker(1)),
        "digits trains since 3 min 0 s: attempt 0, no step reported. `tfrun logs -f digits` shows its output.",
    ),
    "ending": (
        facts(root(status("ending")), controller(), worker(0), worker(1)),
        "digits is ending attempt 0 on every worker since 3 min 0 s. `tfrun logs --controller digits` shows more.",
    ),
    "resuming": (
        facts(root(status("resuming")), controller(), worker(0), worker(1)),
        "digits has a new controller, which asks the workers since 3 min 0 s where they are. `tfrun logs --controller digits` shows more.",
    ),
    "many failures": (
        facts(root(result("failed", "too many", failures=tuple(failure(attempt=number) for number in range(5))))),
        (
            "digits failed: too many. 2 attempts failed before. Attempt 2 ended because worker 1 raised ValueError: bad. Attempt "
            "3 ended because "
            "worker 1 raised ValueError: bad. Attempt 4 ended because worker 1 raised ValueError: bad. "
            "`tfrun logs --previous --worker 1 digits` shows more, `tfrun stop digits` removes it."
        ),
    ),
}


@pytest.mark.parametrize(("known", "said"), CASES.values(), ids=CASES.keys())
def test_each_state_of_a_job_is_told_with_the_next_thing_to_do(known: Facts, said: str) -> None:
    """One paragraph: what is waited for or why it ended, and what to do about it."""
    assert why.text(known) == said


def test_a_command_names_the_namespace_where_it_is_not_the_default() -> None:
    """What is printed can be typed."""
    known = facts(root(status()), controller(), worker(0), worker(1))
    elsewhere = Facts(known.root, known.now, known.jobs, known.pods, (), "default")
    assert "`tfrun logs -f digits -n ml`" in why.text(elsewhere)
