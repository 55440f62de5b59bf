"""What can happen to a job on a cluster, done to real pods, nodes, controllers and API servers; the programs need no TensorFlow."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import faults, images
from tests.cluster.jobs import SMALL, Job
from tests.cluster.objects import Cluster, Namespace

pytestmark = pytest.mark.timeout(400)

RUNS = "attempt {} runs on every worker"


def stepping(namespace: Namespace, folder: Path, steps: int, **fields: Any) -> Job:
    """A job under way, whose workers report that many steps of a fifth of a second: they are not in step, and may drift by two of them."""
    job = Job(namespace, folder, images.TENSORFLOW, SMALL, program="steps.py", args=[str(steps), "0.2", "saver"], **fields)
    job.until_said(RUNS.format(0))
    for worker in job.workers():
        namespace.logged(worker.metadata.name, "stepping")
    return job


@pytest.mark.machine
def test_an_api_server_that_is_away_stops_neither_training_nor_recovery(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """B23: a program that is killed meanwhile is started again meanwhile: agents and controller need no API server for that."""
    job = stepping(namespace, programs, 75)
    program = job.program(job.workers()[1])
    with faults.api_gone():
        os.kill(program, signal.SIGKILL)
        time.sleep(8)
        back = datetime.now(timezone.utc)
    said = job.ended()
    assert RUNS.format(1) in said
    (controller,) = namespace.pods("tfrun.dev/role=controller")
    lines = cluster.core.read_namespaced_pod_log(controller.metadata.name, namespace.name, timestamps=True).splitlines()
    (restarted,) = (line.split()[0] for line in lines if RUNS.format(1) in line)
    assert datetime.fromisoformat(f"{restarted[:19]}+00:00") < back
    assert len(job.workers()) == 2, "nobody was replaced"


@pytest.mark.machine
def test_a_frozen_worker_is_replaced(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """E37: it sees no signal and says nothing; the others don't wait for it, and its successor has its index only when it is gone."""
    job = stepping(namespace, programs, 150)
    victim = job.workers()[1]
    with faults.frozen(namespace.running(victim.metadata.name)):
        job.until_said("worker 1 was lost: its agent was silent for")
        job.until_said(RUNS.format(1))
    job.ended()
    assert "begin 1 1" in job.output(1)


@pytest.mark.machine
def test_the_worker_of_a_lost_node_is_replaced_on_another(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """D31: the kubelet is gone and the pod unreachable; it is never confirmed gone, and a bound replaces that."""
    job = stepping(namespace, programs, 200)
    victim = job.workers()[1]
    with faults.kubelet_gone(victim.spec.node_name), faults.network_cut(namespace.running(victim.metadata.name)):
        job.until_said(RUNS.format(1))
        (successor,) = namespace.pods("tfrun.dev/incarnation=1")
        assert successor.spec.node_name != victim.spec.node_name
    job.ended()


def test_a_worker_without_an_image_ends_the_job_at_its_start_deadline(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """D27: with the image and the registry's answer; nothing of the job keeps a place afterwards."""
    part = {**SMALL, "image": "localhost/no-such-image:1"}
    job = Job(namespace, programs, images.TENSORFLOW, part, program="steps.py", args=["10", "0.1"], deadlines={"start": "15s"})
    said = job.ended(succeeded=False)
    assert "deadline: workers 0 and 1 did not join (its pod has no image localhost/no-such-image:1 (" in said
    assert "within 15 s (deadlines.start)" in said
    namespace.until(lambda: not job.workers(), "end of the workers")


def test_one_worker_that_finds_no_place_releases_the_others(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """D28: half a group that holds its resources for ever would keep out the one that could use them."""
    part = {"resources": {"cpu": "1100m", "memory": "64Mi"}}  # a node has 2: two workers and a controller fit, three workers do not
    fields = {"program": "steps.py", "args": ["10", "0.1"], "deadlines": {"start": "15s"}, "workers": 3}
    job = Job(namespace, programs, images.TENSORFLOW, part, **fields)
    said = job.ended(succeeded=False)
    assert "did not join (its pod can't be scheduled (" in said
    assert "Insufficient cpu" in said
    namespace.until(lambda: all(worker.status.phase != "Running" for worker in job.workers()), "release of the workers")


def test_a_quota_that_is_too_small_ends_the_job_too(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """D28: the pod that is never made is not made after the end either."""
    namespace.quota(pods="2")  # the controller and one worker
    job = Job(namespace, programs, images.TENSORFLOW, SMALL, program="steps.py", args=["10", "0.1"], deadlines={"start": "15s"})
    said = job.ended(succeeded=False)
    assert "did not join within 15 s (deadlines.start)" in said
    group = namespace.until(lambda: cluster.batch.read_namespaced_job("job", namespace.name), "group")
    assert group.spec.parallelism == 0


def test_a_worker_that_needs_too_much_memory_twice_is_final(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """D29: told as what it is, with the limit and what to do; never taken for a preemption."""
    (tmp_path / "greedy.py").write_text("import time\nfilled = []\nwhile True:\n    filled.append(bytearray(8 << 20)); time.sleep(0.02)\n")
    job = Job(namespace, tmp_path, images.TENSORFLOW, SMALL, program="greedy.py")
    said = job.ended(succeeded=False)
    assert "memory" in said
    assert "twice in a row at the same place with no progress between" in said


def test_a_program_that_fails_ends_the_job_with_its_words(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """D33: the controller's Job is failed, the reason is its termination message, the group's Job is failed too."""
    (tmp_path / "wrong.py").write_text("raise ValueError('no such column: price')\n")
    job = Job(namespace, tmp_path, images.TENSORFLOW, SMALL, program="wrong.py")
    said = job.ended(succeeded=False)
    assert "raised ValueError: no such column: price (wrong.py:1), twice in a row" in said
    (controller,) = namespace.pods("tfrun.dev/role=controller")
    ended = controller.status.container_statuses[0].state.terminated
    assert ended.exit_code == 1
    assert ended.message.startswith("failed: worker")
    namespace.until(lambda: "Failed" in conditions(cluster, namespace), "failed group")


def test_a_deleted_worker_is_replaced_and_everyone_saves_first(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """D32: `kubectl delete pod` is a SIGTERM like an eviction; the successor starts while the other one still saves."""
    job = stepping(namespace, programs, 100)
    victim = job.workers()[0]
    cluster.core.delete_namespaced_pod(victim.metadata.name, namespace.name)
    said = job.ended()
    assert "every worker saved at step" in said
    assert RUNS.format(1) in said
    assert RUNS.format(2) not in said
    assert "saved at" in job.output(1)
    assert "begin 0 1" in job.output(0)


def test_one_deletion_deletes_all(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """Everything is owned by the controller's Job, also what kubectl applied, and what the controller made."""
    job = stepping(namespace, programs, 450)
    cluster.core.delete_namespaced_pod(job.workers()[0].metadata.name, namespace.name)
    job.until_said(RUNS.format(1))
    namespace.until(lambda: not unowned(cluster, namespace), "owners of all")
    cluster.batch.delete_namespaced_job("job-controller", namespace.name, propagation_policy="Background")
    namespace.until(lambda: not left(cluster, namespace), "end of everything", 60.0)


@pytest.mark.machine
def test_the_controller_uses_each_of_its_rights_and_no_other(cluster: Cluster, namespace: Namespace, programs: Path) -> None:
    """F47, from the audit log: over an applied job with a lost worker, an unwilling node and an end before time."""
    job = stepping(namespace, programs, 60)
    cluster.core.delete_namespaced_pod(job.workers()[0].metadata.name, namespace.name)
    job.ended()
    account = f"system:serviceaccount:{namespace.name}:job-controller"
    entries = [entry for entry in namespace.audit() if entry.user == account]
    assert all(entry.code < 300 for entry in entries), "a request was refused"
    role = cluster.rbac.read_namespaced_role("job-controller", namespace.name)
    granted = {(verb, resource) for rule in role.rules for verb in rule.verbs for resource in rule.resources}
    unused = {("delete", "jobs")}  # of a replacement whose pod a quota never allows
    assert {(entry.verb, entry.resource) for entry in entries} == granted - unused


def conditions(cluster: Cluster, namespace: Namespace) -> set[str]:
    return {each.type for each in cluster.batch.read_namespaced_job("job", namespace.name).status.conditions or []}


def owned(cluster: Cluster, namespace: Namespace) -> list[Any]:
    """All objects of the job but pods and Secrets, which others own."""
    core, rbac, network = cluster.core, cluster.rbac, cluster.network
    lists = [
        *(core.list_namespaced_config_map, core.list_namespaced_service, core.list_namespaced_service_account),
        *(rbac.list_namespaced_role, rbac.list_namespaced_role_binding, network.list_namespaced_network_policy),
        cluster.batch.list_namespaced_job,
    ]
    return [each for found in lists for each in found(namespace.name, label_selector="tfrun.dev/job=job").items]


def unowned(cluster: Cluster, namespace: Namespace) -> list[str]:
    """What would stay if the controller's Job went."""
    names = [each.metadata.name for each in owned(cluster, namespace) if not each.metadata.owner_references]
    names.remove("job-controller")
    return names


def left(cluster: Cluster, namespace: Namespace) -> list[Any]:
    secrets = cluster.core.list_namespaced_secret(namespace.name, label_selector="tfrun.dev/job=job").items
    return [*owned(cluster, namespace), *secrets, *namespace.pods()]
