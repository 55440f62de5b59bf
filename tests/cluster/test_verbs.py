"""The verbs on a real cluster, from a machine that has nothing but a kubeconfig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import faults, images
from tests.cluster.objects import Cluster, Namespace
from tests.conftest import PROGRAMS, TFRUN

pytestmark = pytest.mark.timeout(400)

PATIENCE = 120.0  # seconds for one verb: pods start and end meanwhile


class Desk:
    """A user's machine: each verb runs in an empty folder, with nothing but the cluster's address."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace = namespace
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def job(self, program: str = "steps", *args: str, part: dict[str, Any] | None = None, **fields: Any) -> Path:
        """A job file, with its program beside it."""
        cluster = self.namespace.cluster
        kubernetes = {
            "namespace": self.namespace.name,
            "image": cluster.image(images.WORKER),
            "controller": {"image": cluster.image(images.CONTROLLER), "cpu": "50m"},
            "resources": {"cpu": "100m", "memory": "256Mi"},
            **(part or {}),
        }
        folder = self._folder / f"job-{len(list(self._folder.iterdir()))}"
        folder.mkdir()
        (folder / f"{program}.py").write_text((PROGRAMS / f"{program}.py").read_text())
        what = {"name": "digits", "workers": 2, "program": f"{program}.py", "args": list(args), **fields, "kubernetes": kubernetes}
        (folder / "job.yaml").write_text(json.dumps(what))
        return folder / "job.yaml"

    def start(self, verb: str, *words: object, kubeconfig: Path | None = None) -> subprocess.Popen[str]:
        """A verb under way."""
        job_file = next((word for word in words if isinstance(word, Path)), None)
        where = job_file.parent if job_file else self._folder
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig or self.namespace.cluster.kubeconfig), "HOME": str(where)}
        command = [TFRUN, verb, *map(str, words), "-n", self.namespace.name]
        process = subprocess.Popen(command, cwd=where, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._started.append(process)
        return process

    def run(self, verb: str, *words: object, code: int = 0, kubeconfig: Path | None = None) -> str:
        """What a verb says on both channels; `code` is its exit code."""
        process = self.start(verb, *words, kubeconfig=kubeconfig)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"{verb}: {process.returncode}\n{out}\n{err}\n{self.namespace.story()}"
        assert "Traceback" not in err, err
        return out + err

    def until(self, text: str, verb: str, *words: object) -> str:
        """What a verb says once it holds a text."""
        return self.namespace.until(lambda: said if text in (said := self.run(verb, *words)) else None, f"{text!r} from {verb}", PATIENCE)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def desk(namespace: Namespace, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(namespace, tmp_path)
    yield made
    made.close()


def left(namespace: Namespace) -> list[str]:
    """What is in a namespace beside what every namespace has."""
    core, batch = namespace.cluster.core, namespace.cluster.batch
    lists = (
        core.list_namespaced_pod,
        core.list_namespaced_service,
        core.list_namespaced_secret,
        core.list_namespaced_config_map,
        core.list_namespaced_service_account,
        batch.list_namespaced_job,
    )
    found = [each.metadata.name for listing in lists for each in listing(namespace.name).items]
    return [name for name in found if name not in ("kube-root-ca.crt", "default")]


def test_a_job_from_submit_to_stop(namespace: Namespace, desk: Desk) -> None:
    """Every verb finds the job in the cluster alone; stop lets the programs save, and nothing is left."""
    job = desk.job("steps", "100000", "0.2", "saver")
    assert "digits is submitted to" in desk.run("submit", job)
    assert "digits is there already, the same job" in desk.run("submit", job)
    assert "another job digits is in the namespace" in desk.run("submit", desk.job("steps", "5", "0.05"), code=2)
    desk.until("digits: running since", "status", "digits")
    status = json.loads(desk.run("status", "digits", "-o", "json"))
    assert (status["phase"], status["attempt"], [row["worker"] for row in status["workers"]]) == ("running", 0, [0, 1])
    assert {row["node"] for row in status["workers"]} <= {"node-0", "node-1"}
    assert "digits   running   2" in desk.run("list")
    assert json.loads(desk.run("list", "-A", "-o", "json"))
    assert "digits trains since" in desk.run("why", "digits")
    assert "is not over after 1 s" in desk.run("wait", "digits", "--timeout", "1s", code=4)
    desk.until("[1] stepping 1 0", "logs", "digits")
    waiting, following = desk.start("wait", "digits"), desk.start("logs", "-f", "digits", "--worker", "1")
    assert following.stdout
    assert following.stdout.readline().startswith("[1] ")
    desk.run("stop", "digits")
    out, _ = following.communicate(timeout=PATIENCE)
    assert "[1] saved at" in out
    assert "[0]" not in out
    assert waiting.wait(PATIENCE) == 143
    namespace.until(lambda: not left(namespace), "namespace without the job")
    assert "there is no job digits in the namespace" in desk.run("why", "digits", code=2)
    assert "there are no jobs" in desk.run("list")


def test_a_followed_job_ends_with_its_exit_code(namespace: Namespace, desk: Desk) -> None:
    """Output with the worker before each line, the controller's sentences beside it, and the job's own exit code, now and later."""
    followed = desk.start("submit", desk.job("steps", "10", "0.05"), "--follow")
    out, err = followed.communicate(timeout=PATIENCE)
    assert followed.returncode == 0, out + err
    assert {f"[{worker}] {word} {worker} 0" for worker in (0, 1) for word in ("begin", "end")} <= set(out.splitlines())
    assert "tfrun: attempt 0 runs on every worker" in err
    assert "digits succeeded" in desk.run("wait", "digits")
    assert "succeeded: every worker's program ended with 0" in desk.run("logs", "digits", "--controller")
    shown = desk.run("logs", "digits").splitlines()
    assert [line for line in shown if line.startswith("[0]")] == [line for line in out.splitlines() if line.startswith("[0]")]
    assert "was submitted before and is over (succeeded)" in desk.run("submit", desk.job("steps", "10", "0.05"), code=2)


def test_a_failed_job_is_told_by_every_verb(namespace: Namespace, desk: Desk) -> None:
    """Both `submit --wait` and `wait` return on failure too, with the job's exit code; why names the worker and what to read."""
    desk.run("submit", desk.job("codes", "0", "3", restarts={"max": 0}), "--wait", code=1)
    desk.run("wait", "digits", code=1)
    why = desk.run("why", "digits")
    assert why.startswith("digits failed: ")
    assert "worker 1" in why
    assert "`tfrun logs --previous --worker 1 digits -n " in why
    assert "failed" in desk.run("list")


def test_ctrl_c_detaches(namespace: Namespace, desk: Desk) -> None:
    """The job goes on, and another machine follows it."""
    followed = desk.start("submit", desk.job("steps", "100000", "0.05"), "--follow")
    assert followed.stdout
    while "stepping" not in followed.stdout.readline():
        assert followed.poll() is None
    followed.send_signal(signal.SIGINT)
    _, err = followed.communicate(timeout=PATIENCE)
    assert followed.returncode == 130
    assert "tfrun: detached; digits goes on: `tfrun logs -f digits -n " in err
    desk.until("digits: running", "status", "digits")
    begun = time.monotonic()
    desk.run("stop", "--now", "digits")
    assert time.monotonic() - begun < 60


def test_a_follower_goes_over_to_the_replacement(namespace: Namespace, desk: Desk) -> None:
    """An evicted worker's successor is followed without being asked for; --previous shows both."""
    desk.run("submit", desk.job("steps", "100000", "0.05"))
    following = desk.start("logs", "-f", "digits", "--worker", "0")
    assert following.stdout
    while following.stdout.readline() != "[0] stepping 0 0\n":
        assert following.poll() is None
    (pod,) = [pod for pod in namespace.pods("tfrun.dev/role=worker") if pod.metadata.name.startswith("digits-0-")]
    faults.evict(namespace.cluster.core, pod)
    while following.stdout.readline() != "[0] begin 0 1\n":
        assert following.poll() is None, namespace.story()
    desk.until("1", "status", "digits")
    desk.run("stop", "--now", "digits")


def test_a_submit_that_fails_half_way_leaves_nothing(namespace: Namespace, desk: Desk) -> None:
    """A quota refuses one object: the others are removed again, the sentence says which and why, and later it works."""
    namespace.quota(**{"count/services": "0"})
    job = desk.job("steps", "100000", "0.05")
    said = desk.run("submit", job, code=3)
    assert "the cluster refused to create the Service digits-controller (403): the quota quota allows count/services=0" in said
    assert "what was made of the job is removed again" in said
    namespace.until(lambda: not left(namespace), "namespace without half a job")
    namespace.cluster.core.delete_namespaced_resource_quota("quota", namespace.name)
    desk.run("submit", job)
    desk.until("running", "status", "digits")
    desk.run("stop", "--now", "digits")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"image": "localhost/tfrun-test/none:1"}, "has no image localhost/tfrun-test/none:1"),
        ({"resources": {"cpu": "1000", "memory": "256Mi"}}, "Insufficient cpu"),
        ({"node_selector": {"no": "such"}}, "change kubernetes.node_selector".capitalize()),
        ({"volumes": [{"claim": "none", "path": "/data"}]}, 'persistentvolumeclaim "none" not found'),
        ({"secrets": {"PASS": {"secret": "none", "key": "x"}}}, 'secret "none" not found'),
        ({"service_account": "none"}, "There is no ServiceAccount none"),
    ],
)
def test_why_says_what_keeps_the_workers(namespace: Namespace, desk: Desk, part: dict[str, Any], says: str) -> None:
    """Image, room, nodes, volumes, Secrets, accounts: told while the job waits, with what to do."""
    desk.run("submit", desk.job("steps", "5", "0.05", part=part))
    why = desk.until(says, "why", "digits")
    assert why.startswith(("digits waits for worker", "digits has no pod for worker"))
    assert "worker" in desk.run("status", "digits", "-o", "wide").lower()
    desk.run("stop", "--now", "digits")


def test_why_names_the_quota(namespace: Namespace, desk: Desk) -> None:
    """Pods that a quota keeps from being made exist nowhere but in an event."""
    namespace.quota(pods="2")
    desk.run("submit", desk.job("steps", "5", "0.05"))
    desk.until("The quota quota allows pods=2", "why", "digits")
    desk.run("stop", "--now", "digits")


def test_check_names_what_is_missing(cluster: Cluster, namespace: Namespace, desk: Desk) -> None:
    """A claim, a Secret and its key, an account, room in the quota; nothing is made."""
    assert "digits can run here" in desk.run("check", desk.job())
    cluster.core.create_namespaced_secret(namespace.name, {"metadata": {"name": "data"}, "stringData": {"other": "canary"}})
    namespace.quota(pods="2", **{"requests.memory": "512Mi"})
    part = {
        "volumes": [{"claim": "none", "path": "/data"}],
        "secrets": {"A": {"secret": "none", "key": "x"}, "B": {"secret": "data", "key": "x"}},
        "service_account": "nobody",
    }
    said = desk.run("check", desk.job(part=part), code=2)
    assert "there is no PersistentVolumeClaim none; create it" in said
    assert "there is no Secret none; create it, or change kubernetes.secrets.A" in said
    assert "the Secret data has no key x" in said
    assert "the quota quota allows 2 of pods, 0 is in use, and this needs 3" in said
    assert "the quota quota allows 512Mi of requests.memory" in said
    assert "canary" not in said
    assert "there is no ServiceAccount nobody in the namespace" in said
    assert "there is no PriorityClass high" in desk.run("check", desk.job(part={"priority_class": "high"}), code=2)
    assert left(namespace) == ["data"]


def test_check_says_whether_the_workers_can_share_a_claim(cluster: Cluster, namespace: Namespace, desk: Desk) -> None:
    """ReadWriteOnce is a warning, since one node may have room for all."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    cluster.core.create_namespaced_persistent_volume_claim(namespace.name, {"metadata": {"name": "data"}, "spec": spec})
    part = {"volumes": [{"claim": "data", "path": "/data"}]}
    assert "warning: the PersistentVolumeClaim data is ReadWriteOnce" in desk.run("check", desk.job(part=part))
    assert "warning" not in desk.run("check", desk.job(part=part, workers=1))


def test_check_names_missing_rights_and_a_missing_namespace(cluster: Cluster, namespace: Namespace, desk: Desk, tmp_path: Path) -> None:
    """Each verb that the job needs and that a service account without rights has not; and a namespace that is not there."""
    token = cluster.core.create_namespaced_service_account_token("default", namespace.name, {"spec": {}}).status.token
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    powerless = tmp_path / "powerless"
    powerless.write_text(json.dumps(config))
    powerless.chmod(0o600)
    job = desk.job()
    said = desk.run("check", job, code=2, kubeconfig=powerless)
    for right in ("create jobs", "create networkpolicies", "patch jobs", "watch pods", "get pods/log", "list events"):
        assert f"you may not {right} here; ask for a Role with the verb {right.split()[0]} on {right.split()[1]}" in said
    refused = desk.run("submit", job, code=3, kubeconfig=powerless)
    assert "may not create jobs here" in refused
    assert token not in said + refused
    namespace.name, there = "no-such-namespace", namespace.name
    try:
        assert "there is no namespace no-such-namespace; create it" in desk.run("check", job, code=2)
    finally:
        namespace.name = there
