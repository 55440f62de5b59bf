"""A set without a controller on a real cluster: rendered, applied, trained, healed by its workers themselves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from subprocess import run
from typing import Any

import kubernetes
import pytest
import yaml

from tests.cluster import faults, images
from tests.cluster.objects import Namespace
from tests.conftest import TFRUN

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]

TRAIN = 240.0  # seconds until a small job must be over: TensorFlow starts several times on two processors
WORKERS = "tfrun.dev/role=worker"


def apply(namespace: Namespace, folder: Path, part: dict[str, Any] | None = None, **fields: Any) -> None:
    """Render the counter program as a static set in the plain image, which has nothing of ours, and create what was printed."""
    kubernetes_part = {
        "namespace": namespace.name,
        "image": namespace.cluster.image(images.TENSORFLOW),
        "resources": {"cpu": "1", "memory": "3Gi"},
        **(part or {}),
    }
    job = {"name": "job", "program": "counter.py", "workers": 2, **fields, "kubernetes": kubernetes_part}
    (folder / "job.yaml").write_text(json.dumps(job))
    rendered = run([TFRUN, "render", "--static", "job.yaml"], cwd=folder, check=True, capture_output=True, text=True).stdout
    for each in yaml.safe_load_all(rendered):
        kubernetes.utils.create_from_dict(namespace.cluster.api, each)


def ended(namespace: Namespace, worker: int) -> str:
    """How the Job of a worker ended: Complete or Failed."""

    def over() -> set[str]:
        conditions = namespace.cluster.batch.read_namespaced_job(f"job-{worker}", namespace.name).status.conditions or []
        return {condition.type for condition in conditions if condition.status == "True"} & {"Complete", "Failed"}

    (how,) = namespace.until(over, f"end of worker {worker}", TRAIN)
    return how


def logs(namespace: Namespace) -> str:
    """What all workers printed."""
    return "\n".join(namespace.log(pod.metadata.name) for pod in namespace.pods(WORKERS))


def test_any_image_trains(namespace: Namespace, folder: Path) -> None:
    """Under Pod Security `restricted`, with no controller, no account of its own and no right; the program's folder goes along."""
    (folder / "src").mkdir()
    (folder / "counter.py").rename(folder / "src" / "counter.py")
    (folder / "src" / "main.py").write_text("import os, counter\nprint('given', os.environ['GIVEN'])\ncounter.main()\n")
    patch = {"pod": {"spec": {"containers": [{"name": "worker", "env": [{"name": "GIVEN", "value": "by the patch"}]}]}}}
    apply(namespace, folder, patch, program="main.py", code="src", args=["--steps", "50"])
    assert [ended(namespace, worker) for worker in (0, 1)] == ["Complete", "Complete"], namespace.story()
    assert logs(namespace).count("counter 100 = replicas 2 × steps 50") == 2
    assert logs(namespace).count("given by the patch") == 2


@pytest.mark.machine
def test_killed_programs_and_a_lost_pod_heal(namespace: Namespace, folder: Path, claim: str) -> None:
    """The counter ends at replicas × steps exactly, though a program of each worker is killed and a pod evicted."""
    arguments = ["--steps", "500", "--every", "25", "--pause", "0.05"]
    volumes = {"volumes": [{"claim": claim, "path": "/data"}]}
    apply(namespace, folder, volumes, args=arguments, checkpoints={"directory": "/data/ckpt"})
    pods = namespace.members(WORKERS, 2)
    first = namespace.running(pods[0].metadata.name).metadata.name
    for times, victim in enumerate(pods, start=1):
        before = namespace.log(first).count("checkpoint at step")
        namespace.until(lambda enough=before: namespace.log(first).count("checkpoint at step") > enough, "another checkpoint", TRAIN)
        os.kill(program(namespace, victim.metadata.name), signal.SIGKILL)
        namespace.until(lambda times=times: namespace.log(first).count("starting after step") > times, "another start", TRAIN)
    faults.evict(namespace.cluster.core, pods[1])
    assert [ended(namespace, worker) for worker in (0, 1)] == ["Complete", "Complete"], namespace.story()
    assert "counter 1000 = replicas 2 × steps 500" in logs(namespace)
    assert "the program was killed by SIGKILL (killed from outside); starting it again" in namespace.log(first)


@pytest.mark.machine
def test_sigterm_leaves_nothing(namespace: Namespace, folder: Path) -> None:
    """A deleted set is gone within its grace, without one process."""
    apply(namespace, folder, args=["--steps", "100000", "--pause", "0.05"])
    (pod, _) = namespace.members(WORKERS, 2)
    namespace.logged(pod.metadata.name, "starting after step 0", TRAIN)
    before = faults.processes(namespace.running(pod.metadata.name))
    for worker in (0, 1):
        namespace.cluster.batch.delete_namespaced_job(f"job-{worker}", namespace.name, propagation_policy="Foreground")
    namespace.until(lambda: not namespace.pods(WORKERS), "end of the pods", 25.0)
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]


def test_a_final_failure_ends_every_worker(namespace: Namespace, folder: Path) -> None:
    """The one that failed at once, with its Job; the other when it has idled without it for as long as a start may take."""
    (folder / "counter.py").write_text("import os, sys, time\nif os.environ['TFRUN_WORKER'] == '1':\n    sys.exit(3)\ntime.sleep(1000)\n")
    apply(namespace, folder, deadlines={"start": "20s"})
    assert [ended(namespace, worker) for worker in (1, 0)] == ["Failed", "Failed"]
    first, second = (namespace.log(pod.metadata.name) for pod in namespace.members(WORKERS, 2))
    assert second.endswith("the program exited with code 3, twice at the same place with no progress between\n")
    assert first.endswith("worker 1 has not answered, and the program been idle, for 20 s (deadlines.start)\n")


def program(namespace: Namespace, pod: str) -> int:
    """The process of the user's program."""
    processes = faults.processes(namespace.running(pod))
    (found,) = (pid for pid, words in processes.items() if " launch " in words)
    return found
