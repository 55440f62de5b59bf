"""The verbs, against an API server in this process: what they ask, what they print, how they end."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import logs, names, stopping, verbs
from orchestrator.access import Access
from orchestrator.client import place
from orchestrator.errors import DeadlineError, InvalidJobError, TfrunError
from tests.conftest import TFRUN
from tests.orchestrator import job_facts
from tests.orchestrator.fake_api import FakeApi, answers, beside
from tests.orchestrator.job_facts import Json

ROOT = place("Job", "ml", "digits-controller")
Server = tuple[FakeApi, Access]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with beside(tmp_path) as found:
        yield found


def put(api: FakeApi, root: Json, *pods: Json) -> None:
    """Have a job of two workers."""
    labels = {names.JOB_LABEL: "digits"}
    group = {"metadata": {"name": "digits", "namespace": "ml", "uid": "group", "labels": labels}, "spec": {"completions": 2}}
    for each in (root, group):
        api.objects[place("Job", "ml", each["metadata"]["name"])] = {"kind": "Job", **each}
    for pod in pods:
        pod["metadata"]["labels"].update(labels)
        api.objects[place("Pod", "ml", pod["metadata"]["name"])] = pod


def running() -> tuple[Json, ...]:
    return job_facts.root(job_facts.status(step=3)), job_facts.controller(), job_facts.worker(0), job_facts.worker(1)


def over(ending: str = "succeeded", code: int = 0) -> Json:
    return job_facts.root(job_facts.result(ending, "so it was", code))


def finish(api: FakeApi, ending: str = "succeeded", code: int = 0) -> None:
    """Have the controller write its result."""
    api.objects[ROOT]["metadata"]["annotations"][names.STATUS] = job_facts.result(ending, "so it was", code).text()


def test_status_in_each_form(server: Server) -> None:
    """For people, wide, and for programs."""
    api, access = server
    put(api, *running())
    shown = verbs.status(access, "digits", "").splitlines()
    assert shown[0].startswith("digits: running since ")
    assert [line.split()[:4] for line in shown[2:]] == [[str(i), f"digits-{i}-0", "node-0", "running"] for i in (0, 1)]
    assert "10.0.0.7" in verbs.status(access, "digits", "wide")
    assert json.loads(verbs.status(access, "digits", "json"))["step"] == 3
    assert "phase: running" in verbs.status(access, "digits", "yaml")


def test_list_has_each_job_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """One row for a job, however many Jobs it has; none is said in words."""
    api, access = server
    assert verbs.jobs(access, False, "") == ""
    assert "there are no jobs in the namespace ml" in capsys.readouterr().err
    put(api, *running())
    assert [line.split()[:3] for line in verbs.jobs(access, False, "").splitlines()[1:]] == [["digits", "running", "2"]]
    assert verbs.jobs(access, True, "").splitlines()[0].split()[0] == "NAMESPACE"
    assert [row["name"] for row in json.loads(verbs.jobs(access, True, "json"))] == ["digits"]


def test_why_reads_the_events_of_the_job_alone(server: Server) -> None:
    """What the cluster told of other objects is not its business."""
    api, access = server
    put(api, job_facts.root())
    for uid, why in (("root", "no more pods"), ("other", "not ours")):
        about = job_facts.event(uid, "FailedCreate", why)
        api.objects[place("Event", "ml", uid)] = {**about, "metadata": {"name": uid}}
    assert "No more pods." in verbs.why(access, "digits")


@pytest.mark.parametrize("name", ["none", "digits"])
def test_a_job_that_is_not_there(server: Server, name: str) -> None:
    """No such object, or one that has the name and is not tfrun's."""
    api, access = server
    api.objects[ROOT] = {"metadata": {"name": "digits-controller", "namespace": "ml"}, "spec": {}}
    with pytest.raises(InvalidJobError, match=f"there is no job {name} in the namespace ml; `tfrun list -A`"):
        verbs.status(access, name, "")


def test_wait_ends_with_the_jobs_code(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """On success and on failure, at once where it is over; a timeout and a deletion are errors."""
    api, access = server
    put(api, over())
    assert verbs.wait(access, "digits", None) == 0
    put(api, over("failed", 1))
    assert verbs.wait(access, "digits", 5.0) == 1
    assert "digits failed: so it was." in capsys.readouterr().out
    put(api, *running())
    with pytest.raises(DeadlineError, match=r"digits is not over after 0.3 s; `tfrun why digits`"):
        verbs.wait(access, "digits", 0.3)
    threading.Timer(0.3, api.objects.pop, (ROOT,)).start()
    with pytest.raises(TfrunError, match="the job digits was deleted before it was over"):
        verbs.wait(access, "digits", 10.0)


def test_wait_knows_the_end_of_a_job_that_is_deleted_at_once(server: Server) -> None:
    """What `tfrun stop` does: the result, then the deletion, faster than anyone asks again."""
    api, access = server
    put(api, over("stopped", 143))

    async def delete(request: Any) -> None:
        if "fieldSelector" in request.query:
            api.objects = {}

    api.after = delete
    assert verbs.wait(access, "digits", None) == 143


# ---- output ----


def line(second: int, text: str) -> bytes:
    return f"2026-11-21T12:00:{second:02}.000000000Z {text}\n".encode()


def test_logs_are_in_the_order_of_their_times(server: Server, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Each worker's newest pod, or one worker, or earlier pods too, or the controller."""
    api, access = server
    put(api, *running(), job_facts.worker(1, "Failed", incarnation=2, terminated={"exitCode": 1}))
    api.logs = {
        "digits-0-0": line(2, "b") + line(4, "d")[:-1],
        "digits-1-0": line(1, "old"),
        "digits-1-2": line(3, "c"),
        "digits-controller-x": line(5, "attempt 0 runs on every worker"),
    }
    for choice, said in (
        (logs.Choice(), b"[0] b\n[1] c\n[0] d\n"),
        (logs.Choice(worker=1), b"[1] c\n"),
        (logs.Choice(previous=True), b"[1] old\n[0] b\n[1] c\n[0] d\n"),
        (logs.Choice(controller=True), b"attempt 0 runs on every worker\n"),
    ):
        verbs.show_logs(access, "digits", choice, follow=False)
        assert capfdbinary.readouterr().out == said
    with pytest.raises(InvalidJobError, match="there is no worker 2; digits has the workers 0 to 1"):
        verbs.show_logs(access, "digits", logs.Choice(worker=2), follow=False)


def test_no_output_yet(server: Server) -> None:
    """A job whose containers have not begun says where to look."""
    api, access = server
    put(api, job_facts.root(), job_facts.worker(0, "Pending", waiting={"reason": "ContainerCreating"}))
    with pytest.raises(InvalidJobError, match="there is no output yet; `tfrun why digits` says what digits waits for"):
        verbs.show_logs(access, "digits", logs.Choice(), follow=False)


def test_one_log_that_can_not_be_read_hides_no_other(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """A node that does not answer is told, and the others' output is shown."""
    api, access = server
    put(api, *running())
    api.logs = {f"digits-{worker}-0": line(1, "here") for worker in (0, 1)}

    async def no_log(request: Any) -> Any:
        return await answers(500, "no answer from the node")(request) if request.path.endswith("digits-0-0/log") else None

    api.after = no_log
    verbs.show_logs(access, "digits", logs.Choice(), follow=False)
    out, err = capfd.readouterr()
    assert out == "[1] here\n"
    assert "tfrun: the output of digits-0-0 can't be read to its end (" in err


def test_following_goes_on_after_a_break_and_with_new_pods(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """A log that breaks is asked for again, a replacement's is taken up, and the job's end is the end."""
    api, access = server
    put(api, job_facts.root(job_facts.status()), job_facts.worker(0), job_facts.worker(1, "Pending", node=""))
    api.logs = {"digits-0-0": line(1, "a"), "digits-1-1": line(3, "new")}
    followed = threading.Thread(target=verbs.show_logs, args=(access, "digits", logs.Choice(), True))
    followed.start()
    shown = _until(capfd, "[0] a\n")
    api.logs["digits-0-0"] += line(2, "b")
    shown += _until(capfd, "[0] b\n")
    put(api, job_facts.root(job_facts.status()), job_facts.worker(1, incarnation=1))
    shown += _until(capfd, "[1] new\n")
    put(api, over(), *(job_facts.worker(worker, "Succeeded", terminated={"exitCode": 0}) for worker in (0, 1)))
    put(api, over(), job_facts.worker(1, "Succeeded", incarnation=1, terminated={"exitCode": 0}))
    followed.join(30)
    assert not followed.is_alive()
    assert (shown + capfd.readouterr().out).splitlines() == ["[0] a", "[0] b", "[1] new"]


def _until(capfd: pytest.CaptureFixture[str], text: str) -> str:
    shown = ""
    for _ in range(200):
        shown += capfd.readouterr().out
        if text in shown:
            return shown
        threading.Event().wait(0.05)  # polling with an end: output of a thread can't be waited for
    raise AssertionError(f"no {text!r} in {shown!r}")


def test_a_reader_that_goes_away_is_no_error_of_ours(server: Server) -> None:
    """`tfrun logs digits | head` ends as a program that SIGPIPE ends, without a word."""
    api, access = server
    put(api, *running())
    api.logs = {"digits-0-0": line(1, "x" * 200) * 20_000}
    command = f"{TFRUN} logs digits --worker 0 --kubeconfig {access.kubeconfig}"
    done = subprocess.run(["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["141"]


# ---- submit, stop, check ----


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    part = {"namespace": "ml", "image": "a:1", "controller": {"image": "b:1"}, "resources": {"memory": "1Gi"}}
    path.write_text(json.dumps({"name": "digits", "builtin": "digits", "workers": 2, "kubernetes": part}))
    return path


def test_submit_says_what_comes_next(server: Server, job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines: what was done, and the commands that follow, with the namespace where it has to be named."""
    api, access = server
    assert verbs.send(access, job_file, follow=False, wait=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits is submitted to ml (2 workers)",
        "`tfrun logs -f digits` follows it, `tfrun status digits` shows it, `tfrun stop digits` ends it",
    ]
    assert verbs.send(Access(access.kubeconfig, namespace="other"), job_file, follow=False, wait=False) == 0
    assert "`tfrun stop digits -n other`" in capsys.readouterr().out
    threading.Timer(0.5, finish, (api, "failed", 1)).start()
    assert verbs.send(access, job_file, follow=False, wait=True) == 1


def test_submit_follow_shows_both_and_ends_as_the_job(server: Server, job_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The controller's sentences on stderr, the workers' lines on stdout."""
    api, access = server
    verbs.send(access, job_file, follow=False, wait=False)
    put(api, api.objects[ROOT], job_facts.controller(), job_facts.worker(0))
    api.logs = {"digits-controller-x": line(1, "attempt 0 runs on every worker"), "digits-0-0": line(2, "hello")}

    def end() -> None:
        ended = (job_facts.controller("Failed", terminated={"exitCode": 1}), job_facts.worker(0, "Failed", terminated={}))
        put(api, api.objects[ROOT], *ended)
        finish(api, "failed", 1)

    threading.Timer(1.5, end).start()
    assert verbs.send(access, job_file, follow=True, wait=False) == 1
    out, err = capfd.readouterr()
    assert "[0] hello\n" in out
    assert "tfrun: attempt 0 runs on every worker\n" in err


def test_a_follower_is_told_what_the_job_waits_for(
    server: Server, job_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there is no controller to tell it; once, not again and again."""
    monkeypatch.setattr(verbs, "SAY_AFTER", 0.1)
    api, access = server
    threading.Timer(1.0, finish, (api,)).start()
    assert verbs.send(access, job_file, follow=True, wait=False) == 0
    assert capfd.readouterr().err.count("tfrun: digits waits for its controller, whose pod is not there.") == 1


def test_stop_asks_first_and_then_deletes(server: Server) -> None:
    """The annotation, the end of the job, the deletion, the end of the pods: in this order."""
    api, access = server
    put(api, *running())

    async def end(request: Any) -> None:
        if request.method == "PATCH":
            finish(api, "stopped", 143)
        if request.method == "DELETE":
            api.objects = {}

    api.after = end
    verbs.stop(access, "digits", now=False)
    changes = [each for each in api.asked if not each.startswith("GET")]
    assert changes == [f"PATCH {ROOT}", f"DELETE {ROOT}"]


@pytest.mark.parametrize(
    ("now", "root", "pods", "says"),
    [
        (True, job_facts.root(job_facts.status()), (job_facts.controller(),), ""),
        (False, over(), (), ""),
        (False, job_facts.root(), (), "digits had not begun, so there is nothing to save"),
        (False, job_facts.root(job_facts.status()), (), "the controller of digits does not run, so the programs can't be asked to save"),
        (False, job_facts.root(job_facts.status()), (job_facts.controller(),), "digits has not ended within 0.3 s after it was asked to"),
    ],
)
def test_stop_never_waits_in_vain(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, now: bool, root: Json, pods: Any, says: str
) -> None:
    """Where nothing can be saved the job is deleted, after a bound, and the reason is told."""
    monkeypatch.setattr(stopping, "SAVE", 0.3)
    monkeypatch.setattr(stopping, "COME", 0.3)
    api, access = server
    put(api, json.loads(json.dumps(root)), *json.loads(json.dumps(pods)))

    async def delete(request: Any) -> None:
        if request.method == "DELETE":
            api.objects = {}

    api.after = delete
    verbs.stop(access, "digits", now)
    assert f"DELETE {ROOT}" in api.asked
    assert says in capsys.readouterr().err


def test_stop_names_the_pods_that_stay(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that is lost keeps its pods; the verb says which and where, and ends with 4."""
    monkeypatch.setattr(stopping, "GONE", 0.5)
    monkeypatch.setattr(stopping, "TELL", 0.1)
    api, access = server
    put(api, over(), job_facts.worker(0))
    with pytest.raises(DeadlineError, match=r"digits is deleted, but its pods digits-0-0 have not ended after 0.5 s \(on node-0\)"):
        verbs.stop(access, "digits", now=False)
    assert "tfrun: waiting until these pods have ended: digits-0-0" in capsys.readouterr().err


def test_check_finds_nothing(server: Server, job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And makes nothing."""
    api, access = server
    api.objects[place("Namespace", name="ml")] = {"metadata": {"name": "ml"}}
    assert verbs.check(access, job_file) == 0
    assert capsys.readouterr().out == "digits can run here\n"
    assert list(api.objects) == [place("Namespace", name="ml")]


FINDINGS: dict[str, tuple[dict[str, Json], set[str], dict[str, str], str]] = {
    "rights": (
        {},
        {"create jobs", "get pods"},
        {},
        "you may not create jobs here; ask for a Role with the verb create on jobs in the API group 'batch'",
    ),
    "no pods to try": ({}, {"create pods"}, {}, "warning: you may not create pods, so whether Pod Security"),
    "refused": ({}, set(), {"Service": "denied"}, "the cluster would refuse the Service digits-controller: denied"),
    "refused pods": (
        {},
        set(),
        {"Pod": 'violates PodSecurity "restricted:latest": privileged'},
        "the cluster would refuse the Pod digits-…: the namespace's Pod Security level restricted:latest forbids privileged",
    ),
    "there already": ({ROOT: {"metadata": {"name": "x"}}}, set(), {}, "a job digits is there already; `tfrun stop digits`"),
    "in the way": (
        {place("Service", "ml", "digits-controller"): {"metadata": {"name": "x"}}},
        set(),
        {},
        "a Service digits-controller is there already",
    ),
}


@pytest.mark.parametrize(("there", "forbidden", "refuses", "says"), FINDINGS.values(), ids=FINDINGS)
def test_check_finds(
    server: Server, job_file: Path, capsys: pytest.CaptureFixture[str], there: Any, forbidden: Any, refuses: Any, says: str
) -> None:
    """A sentence for each thing that is missing; warnings alone do not keep a job from running."""
    api, access = server
    api.objects = {place("Namespace", name="ml"): {"metadata": {"name": "ml"}}, **there}
    api.forbidden, api.refuses = forbidden, refuses
    assert verbs.check(access, job_file) == (0 if says.startswith("warning") else 2)
    assert says in capsys.readouterr().out


def quota(**hard: str) -> Json:
    return {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": {"pods": "1"}}}


def claim(*modes: str, phase: str = "Bound") -> Json:
    return {"metadata": {"name": "data"}, "spec": {"accessModes": list(modes)}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ({}, "there is no PersistentVolumeClaim data; create it"),
        ({"PersistentVolumeClaim": claim("ReadWriteMany")}, "digits can run here"),
        (
            {"PersistentVolumeClaim": claim("ReadWriteOnce")},
            "warning: the PersistentVolumeClaim data is ReadWriteOnce, so all 2 workers must find room",
        ),
        ({"PersistentVolumeClaim": claim("ReadOnlyMany")}, "can be shared for reading only; say read_only: true"),
        ({"PersistentVolumeClaim": claim("ReadWriteOncePod")}, "is for one pod (ReadWriteOncePod), and the job has 2 workers"),
        ({"PersistentVolumeClaim": claim("ReadWriteMany", phase="Lost")}, "has lost its volume"),
        ({"ResourceQuota": quota(pods="3")}, "the quota team allows 3 of pods, 1 is in use, and this needs 3; end something else"),
        (
            {"ResourceQuota": quota(**{"requests.memory": "2Gi"})},
            "the quota team allows 2Gi of requests.memory, 0 is in use, and this needs 2.25Gi",
        ),
        ({"ResourceQuota": quota(**{"count/jobs.batch": "1"})}, "the quota team allows 1 of count/jobs.batch"),
        (
            {"ResourceQuota": {**quota(pods="0"), "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}}},
            "there is no PersistentVolumeClaim",
        ),
    ],
)
def test_check_looks_at_claims_and_quotas(
    server: Server, job_file: Path, capsys: pytest.CaptureFixture[str], objects: dict[str, Json], says: str
) -> None:
    """Whether all workers can share a claim, and whether a quota leaves room for all of them."""
    api, access = server
    job = json.loads(job_file.read_text())
    job["kubernetes"]["volumes"] = [{"claim": "data", "path": "/data"}]
    job_file.write_text(json.dumps(job))
    api.objects = {place("Namespace", name="ml"): {"metadata": {"name": "ml"}}}
    api.objects |= {place(kind, "ml", "data"): {**each, "metadata": {**each["metadata"]}} for kind, each in objects.items()}
    verbs.check(access, job_file)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (None, "there is no Secret registry; create it, or change kubernetes.pull_secrets"),
        ({}, "the Secret registry has no key token; add it, or change kubernetes.secrets.HUB"),
        ({"token": "Y2FuYXJ5"}, "digits can run here"),
        ("forbidden", "warning: you may not read Secrets, so whether registry is there is unknown (kubernetes.pull_secrets)"),
    ],
)
def test_check_looks_at_secrets(server: Server, job_file: Path, capsys: pytest.CaptureFixture[str], there: Any, says: str) -> None:
    """Whether they and their keys are there; what is in them is nobody's business."""
    api, access = server
    job = json.loads(job_file.read_text())
    job["kubernetes"] |= {"pull_secrets": ["registry"], "secrets": {"HUB": {"secret": "registry", "key": "token"}}}
    job_file.write_text(json.dumps(job))
    api.objects = {place("Namespace", name="ml"): {"metadata": {"name": "ml"}}}
    if isinstance(there, dict):
        api.objects[place("Secret", "ml", "registry")] = {"metadata": {"name": "registry"}, "data": there}

    async def secret(request: Any) -> Any:
        return await answers(403, "no")(request) if there == "forbidden" and "/secrets/registry" in request.path else None

    api.after = secret
    verbs.check(access, job_file)
    shown = capsys.readouterr().out
    assert says in shown
    assert "Y2FuYXJ5" not in shown


def test_check_without_a_namespace(server: Server, job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is worth saying."""
    _, access = server
    assert verbs.check(access, job_file) == 2
    assert capsys.readouterr().out.startswith(
        "there is no namespace ml; create it (kubectl create namespace ml), or choose another with -n\n"
    )
