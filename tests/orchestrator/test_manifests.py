"""The objects of a job on Kubernetes: what they hold, that nothing can break out of its place, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import yaml as yaml_1_1  # what kubectl reads; PyYAML comes with the Kubernetes client
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator import limits, names, spec, static, submit, templates
from orchestrator.archive import pack, worker_archive
from orchestrator.errors import InvalidJobError
from orchestrator.jobfile import load
from orchestrator.manifests import each_worker, is_of_workers, job_objects, warnings, worker_objects
from orchestrator.spec import WORKER_LIMIT, JobSpec
from tests.conftest import TFRUN

GOLDEN = Path(__file__).with_name("golden")
KUBERNETES: dict[str, Any] = {
    "image": "registry.example/team/train:1.2",
    "controller": {"image": "registry.example/team/controller:1.2"},
    "resources": {"memory": "2Gi"},
}
# Anything but what no API takes: a NUL character, half a character.
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


def job(**fields: Any) -> JobSpec:
    kubernetes = {**KUBERNETES, **fields.pop("kubernetes", {})}
    return spec.make({"program": "/app/train.py", "name": "digits", "workers": 2, **fields, "kubernetes": kubernetes}, "the job")


def group(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (o for o in objects if o["kind"] == "Job" and o["metadata"]["name"] == "digits")
    return found["spec"]["template"]["spec"]["containers"][0]


FULL = {
    "args": ["--epochs", "5"],
    "env": {"TF_DETERMINISTIC_OPS": "1"},
    "checkpoints": {"directory": "/data/ckpt"},
    "kubernetes": {
        "namespace": "ml-team",
        "resources": {"cpu": "4", "memory": "8Gi", "gpu": 1, "shared_memory": "2Gi"},
        "volumes": [{"claim": "data", "path": "/data"}, {"claim": "sets", "path": "/sets", "read_only": True}],
        "secrets": {"WANDB_API_KEY": {"secret": "wandb", "key": "key"}},
        "node_selector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "priority_class": "high",
        "service_account": "trainer",
        "pull_secrets": ["registry"],
        "spot": True,
        "time_to_live": "1h",
    },
}


TASK = {
    "program": None,
    "task": "tasks/my_task.py",
    "args": ["--epochs", "6"],
    "train": {"epochs": 5, "jit_compile": True, "tensorboard": "/data/tb", "profile": {"steps": [100, 110]}, "export": "/data/$(HOME)"},
    "checkpoints": {"directory": "/data/ckpt", "steps": 500, "every": "10m", "best": "accuracy"},
    "kubernetes": {"volumes": [{"claim": "data", "path": "/data"}]},
}


def on_tpu(topology: str, **kubernetes: Any) -> dict[str, Any]:
    """A job on one host of TPU v5e; what is no key of `kubernetes` itself is one of its `tpu`."""
    slice_ = {"accelerator": "tpu-v5-lite-podslice", "topology": topology}
    slice_ |= {key: kubernetes.pop(key) for key in ("chips_per_pod", "node_pool", "reservation") if key in kubernetes}
    return {"workers": 1, "strategy": "tpu", "kubernetes": {"tpu": slice_, **kubernetes}}


def controlled(made: JobSpec) -> list[dict[str, Any]]:
    """With a Job that replaces a worker later."""
    return [*job_objects(made, None), *worker_objects(made, worker=made.workers - 1, incarnation=3)]


def without_controller(made: JobSpec) -> list[dict[str, Any]]:
    return static.job_objects(made, None)


Shape = Callable[[JobSpec], list[dict[str, Any]]]
SHAPES = {
    "small": (controlled, {}),
    "full": (controlled, FULL),
    "task": (controlled, TASK),
    "static": (without_controller, FULL),
    "workers": (each_worker, FULL),
    "tpu-v5e-1x1": (controlled, {**on_tpu("1x1", node_pool="tpus"), "strategy": "auto"}),
    "tpu-v5e-2x2-spot": (controlled, on_tpu("2x2", spot=True, node_selector={"team": "a"})),
    "tpu-v5e-2x4-reservation": (controlled, on_tpu("2x4", chips_per_pod=8, reservation="team-1")),
    "tpu-v5e-2x2-static": (without_controller, on_tpu("2x2", tolerations=[{"key": "team", "operator": "Exists"}])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_objects_are_these(name: str) -> None:
    """Compared whole with a file; the archives, which change with every source, are left out of it."""
    shape, fields = SHAPES[name]
    objects = shape(job(**fields))
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["binaryData"] = dict.fromkeys(each["binaryData"], "")
    text, golden = submit.text(objects), GOLDEN / f"{name}.yaml"
    assert text == golden.read_text(), f"if this is what you want, write it there: {_write(golden, text)}"


def _write(golden: Path, text: str) -> str:
    new = golden.with_suffix(".new")
    new.write_text(text)
    return f"mv {new} {golden}"


@pytest.mark.parametrize("shape", [controlled, without_controller])
@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=1250, deadline=None)
def test_no_text_breaks_out_of_its_place(shape: Shape, argument: str, value: str) -> None:
    """B11: quotes, newlines, `{{`, YAML's traps, emoji: they reach the pod as they were given, for a reader of YAML 1.1 and one of 1.2."""
    made = job(args=[argument], env={"GIVEN": value}, kubernetes={"pod": {"metadata": {"annotations": {"given": value}}}})
    meant = shape(made)
    for each in meant:
        each.pop("binaryData", None)  # our own archives, which are long
    text = submit.text(meant)
    assert list(yaml_1_1.load_all(text, yaml_1_1.CSafeLoader)) == meant
    template = next(filter(is_of_workers, meant))["spec"]["template"]
    container = template["spec"]["containers"][0]
    assert _expanded(container["command"][-1]) == argument
    assert _expanded(next(e["value"] for e in container["env"] if e["name"] == "GIVEN")) == value
    assert template["metadata"]["annotations"] == {"given": value}


@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=500, deadline=None)
def test_what_is_printed_is_read_back(key: str, value: str) -> None:
    """By readers of both YAMLs, at every place where a text can be."""
    node = {key: [value, [value, {}], {"a": value, key: None}], "b": {"c": [], "d": [[key]], "e": 1, "f": True}}
    text = submit.text([node, {"a": 1.5}])
    assert list(yaml_1_1.load_all(text, yaml_1_1.CSafeLoader)) == [node, {"a": 1.5}]
    assert list(YAML(typ="safe", pure=True).load_all(text)) == [node, {"a": 1.5}]


def _expanded(text: str) -> str:
    """What Kubernetes makes of a text: `$$(` is a `$(` that it leaves alone (third_party/forked/golang/expansion in its sources)."""
    return text.replace("$$(", "$(")


TRAPS = ["no", "12:30", "=", "1e3", "null", "0o17", "2026-11-21", "~", "y", "0x1F", "1_000", ".inf", "<<", "*a", "- a", ""]


@pytest.mark.parametrize("value", TRAPS)
def test_text_stays_text(value: str) -> None:
    """B17: what YAML readers like to take for something else."""
    text = submit.text(job_objects(job(env={"GIVEN": value}), None))
    objects = list(yaml_1_1.load_all(text, yaml_1_1.CSafeLoader))
    assert next(e["value"] for e in group(objects)["env"] if e["name"] == "GIVEN") == value


@pytest.mark.parametrize("shape", [[], ["--static"], ["--workers"]])
def test_the_same_job_gives_the_same_bytes(tmp_path: Path, shape: list[str]) -> None:
    """B16: whatever the hash seed, the time zone, the locale, the moment."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text(json.dumps({"program": "train.py", "env": {"A": "ä"}, "kubernetes": KUBERNETES}))
    seen = set()
    for seed, zone, locale in (("1", "UTC", "C"), ("2", "Asia/Tokyo", "C.UTF-8"), ("3", "America/St_Johns", "POSIX")):
        environ = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale}
        seen.add(run([TFRUN, "render", *shape, "job.yaml"], cwd=tmp_path, env=environ, check=True, capture_output=True).stdout)
    assert len(seen) == 1


def test_size_does_not_grow_with_the_workers() -> None:
    """B14: at most 300 KB for a thousand, and within 1 % of two; the same for ten thousand."""
    sizes = {n: len(submit.text(job_objects(job(workers=n), None))) for n in (1, 2, 1000, 10_000)}
    assert sizes[1000] < 300_000
    assert max(sizes.values()) < 1.01 * min(sizes.values())


@pytest.mark.parametrize("workers", [1, 2, 1000])
def test_a_static_set_has_one_of_each_worker(workers: int) -> None:
    """B14: index, host name and address say the same of each; at most 3 MB for a thousand, whose addresses are there once."""
    made = job(workers=workers)
    objects = static.job_objects(made, None)
    assert len(submit.text(objects)) < 150_000 + 2_850 * workers
    (files,) = (o for o in objects if o["kind"] == "ConfigMap")
    addresses = json.loads(files["data"]["static.json"])["cluster"]["worker"]
    assert len(set(addresses)) == workers
    for worker, each in enumerate(filter(is_of_workers, objects)):
        spec_ = each["spec"]["template"]["spec"]
        assert addresses[worker] == f"{spec_['hostname']}.{spec_['subdomain']}:2222"
        assert each["metadata"]["name"] == spec_["hostname"]
        assert {"name": "JOB_COMPLETION_INDEX", "value": str(worker)} in spec_["containers"][0]["env"]
        assert "TF_CONFIG" not in json.dumps(each)


def test_each_worker_is_shown_with_its_tf_config() -> None:
    """As the Job that replaces it would be, and what its program will find; too many to read are refused."""
    made = job(workers=3)
    for worker, each in enumerate(each_worker(made)):
        tf_config = json.loads(each["metadata"].pop("annotations")["tfrun.dev/tf-config"])
        assert tf_config["cluster"] == {"worker": ["worker-0:port", "worker-1:port", "worker-2:port"]}
        assert tf_config["task"] == {"type": "worker", "index": worker}
        assert [each] == worker_objects(made, worker, 1)
    with pytest.raises(
        InvalidJobError, match="2000 workers with a TF_CONFIG of all addresses each are 78 MB, and --workers prints at most 20"
    ):
        each_worker(job(workers=2000))


@pytest.mark.parametrize("arguments", [[], ["--static"], ["--workers"]])
def test_render_warns_on_stderr(tmp_path: Path, arguments: list[str]) -> None:
    """What is printed stays what can be applied."""
    pod = {"spec": {"hostPID": True}}
    (tmp_path / "job.yaml").write_text(json.dumps({"program": "/train.py", "kubernetes": {**KUBERNETES, "image": "train", "pod": pod}}))
    done = run([TFRUN, "render", *arguments, "job.yaml"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stderr.splitlines() == [
        "tfrun: warning: kubernetes.image is train, which may be another image for a worker that is replaced; give a version or a digest",
        "tfrun: warning: kubernetes.pod sets hostPID, which takes away the wall between the pod and its node",
    ]
    assert all(yaml_1_1.safe_load_all(done.stdout))


def test_only_a_static_set_does_without_a_controller() -> None:
    """And says where the image comes from."""
    made = job(kubernetes={"controller": None})
    assert static.job_objects(made, None)
    with pytest.raises(InvalidJobError, match=r"kubernetes.controller.image of digits is missing; it is made from the target `controller`"):
        job_objects(made, None)


def test_the_code_of_a_local_script_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with a relative path is this machine's; one with an absolute path is the image's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('hello')\n")
    made = job(program="src/train.py")
    objects = submit.objects(made)
    (files,) = (o for o in objects if o["kind"] == "ConfigMap")
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(files["binaryData"]["code.zip"]))) as archive:
        assert archive.read("train.py") == b"print('hello')\n"
    assert group(objects)["command"][-4:] == ["--code", "/tfrun/code.zip", "script", "train.py"]
    assert "--code" not in group(submit.objects(job()))["command"]


def test_a_task_goes_along_as_a_script_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its folder, and so under its base name; the image's own, by absolute path or dotted name, stays there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my_task.py").write_text("import tensorflow as tf\n")
    objects = submit.objects(job(program=None, task="src/my_task.py", train={"epochs": 5}))
    (files,) = (o for o in objects if o["kind"] == "ConfigMap")
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(files["binaryData"]["code.zip"]))) as archive:
        assert archive.namelist() == ["my_task.py"]
    words = ["--code", "/tfrun/code.zip", "module", "worker_image.train", "--task", "my_task.py", "--epochs", "5"]
    assert group(objects)["command"][-8:] == words
    for task in ("/app/my_task.py", "parts.my_task"):
        command = group(submit.objects(job(program=None, task=task)))["command"]
        assert command[-4:] == ["module", "worker_image.train", "--task", task]
        assert "--code" not in command


@pytest.mark.parametrize(
    ("directory", "lost"),
    [("/data/x", False), ("/data", False), ("gs://bucket/x", False), ("x", True), ("/tmp/x", True), ("/database", True)],
)
def test_what_no_volume_keeps_is_warned_of(directory: str, lost: bool) -> None:
    """A model that is gone with its pod helps nobody."""
    train, checkpoints = {"tensorboard": directory, "export": directory}, {"directory": directory}
    fields = {"program": None, "task": "a.b", "train": train, "checkpoints": checkpoints}
    found = warnings(job(**fields, kubernetes={"volumes": [{"claim": "data", "path": "/data"}]}))
    says = "is {}, which is lost with the pod; give a path on one of kubernetes.volumes"
    keys = ("checkpoints.directory", "train.tensorboard", "train.export") if lost else ()
    assert found == [f"{key} {says.format(directory)}" for key in keys]


def test_code_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, with the path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidJobError, match=r"the program train.py can't be read \(No such file or directory\); give its path from"):
        submit.objects(job(program="train.py"))
    with pytest.raises(InvalidJobError, match=r"the task my_task.py can't be read \(No such file or directory\); give its path from"):
        submit.objects(job(program=None, task="my_task.py"))


def test_code_that_is_too_large_is_refused() -> None:
    """A ConfigMap holds a megabyte; the way out is named. A quarter of that is too much for what kubectl apply notes."""
    made = job(program="train.py")
    says = r"\(code.zip 1,100,000\), and a ConfigMap holds at most 1,048,576; put the code into the image, and give its path there"
    with pytest.raises(InvalidJobError, match=says):
        job_objects(made, bytes(1_100_000))
    (warning,) = limits.warnings(job_objects(made, bytes(300_000)))
    assert warning.startswith("the ConfigMap digits-files is too large for a plain kubectl apply")
    assert not limits.warnings(job_objects(made, bytes(50_000)))


def test_addresses_that_are_too_many_are_refused() -> None:
    """A static set needs them all in a ConfigMap; a controller needs no list."""
    with pytest.raises(InvalidJobError, match=r"\(static.json 2,\d+,\d+\), and .*; run it with a controller \(without --static\)"):
        static.job_objects(job(workers=WORKER_LIMIT), None)


def test_an_object_that_no_cluster_stores_is_refused() -> None:
    """Its database takes a megabyte and a half in one request."""
    made = job(env={f"A{i}": "x" * 100_000 for i in range(16)})
    with pytest.raises(
        InvalidJobError, match=r"the Job digits-0 is 1,60\d,\d+ bytes, and Kubernetes stores at most 1,572,864; put long args"
    ):
        static.job_objects(made, None)


LONGEST = 131_072 - 1  # bytes of one string, and a NUL


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"env": {"GIVEN": "x" * (LONGEST - len("GIVEN="))}}, ""),
        ({"env": {"GIVEN": "x" * (LONGEST - len("GIVEN=") + 1)}}, "env has 131,073 bytes in GIVEN, and Linux takes at most 131,072"),
        ({"env": {"GIVEN": "ä" * 65_536}}, "env has 131,079 bytes in GIVEN"),
        ({"env": {"TF_CONFIG": "x" * LONGEST}}, "sets TF_CONFIG, which tfrun sets for each worker"),
        ({"args": ["x" * LONGEST]}, ""),
        ({"args": ["x" * (LONGEST + 1)]}, "args has 131,073 bytes in an argument, and Linux takes at most 131,072"),
        (
            {"env": {f"A{i}": "x" * 100_000 for i in range(12)}},
            "(job.yaml 1,200,453), and a ConfigMap holds at most 1,048,576; put long args",
        ),
    ],
)
def test_what_no_process_could_start_with_is_refused(fields: dict[str, Any], sentence: str) -> None:
    """B15: before anything is sent, not by a pod that can't start (execve takes no longer string)."""
    if not sentence:
        assert job_objects(job(**fields), None)
        return
    with pytest.raises(InvalidJobError) as refused:
        job_objects(job(**fields), None)
    assert sentence in str(refused.value)


def test_a_job_without_the_part_is_refused() -> None:
    """With what is missing."""
    with pytest.raises(InvalidJobError, match="the job digits has no part `kubernetes`; it needs at least image"):
        job_objects(spec.make({"builtin": "digits"}, "the job"), None)


@pytest.mark.parametrize(
    ("kubernetes", "sentence"),
    [
        ({"resources": {}}, "kubernetes.resources.memory is missing"),
        ({"resources": {"memory": "1gb"}}, "kubernetes.resources.memory is '1gb'; it must be a Kubernetes quantity"),
        ({"resources": {"memory": "8"}}, "is less than a megabyte; the unit is missing or wrong, such as 8Gi"),
        ({"resources": {"memory": 8}}, "must be text; put it in quotes"),
        ({"resources": {"memory": "1Gi", "shared_memory": "2Gi"}}, "has a shared_memory of 2Gi, which is part of the memory of 1Gi"),
        ({"resources": {"memory": "1Gi", "cpu": "0"}}, "kubernetes.resources.cpu is '0'; it must be more than nothing"),
        ({"resources": {"memroy": "1Gi"}}, "there is no key kubernetes.resources.memroy; did you mean memory?"),
        ({"image": "Not An Image"}, "must be the name of an image"),
        ({"namespace": "Team_A"}, "must be lower-case letters, digits and '-'"),
        ({"volumes": [{"claim": "c", "path": "data"}]}, "must be an absolute path of its own"),
        ({"volumes": [{"claim": "c", "path": "/tfrun"}]}, "must be an absolute path of its own"),
        ({"volumes": [{"claim": "c", "path": "/a/../b"}]}, "must be an absolute path of its own"),
        ({"volumes": [{"claim": "a", "path": "/d"}, {"claim": "b", "path": "/d/"}]}, "has two volumes at /d"),
        ({"secrets": {"TF_CONFIG": {"secret": "s", "key": "k"}}}, "sets TF_CONFIG, which tfrun sets for each worker"),
        ({"tolerations": [{"effect": "Never"}]}, "must be one of 'NoSchedule', 'PreferNoSchedule' or 'NoExecute'"),
        ({"time_to_live": "soon"}, "must be a duration"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_before(kubernetes: dict[str, Any], sentence: str) -> None:
    """Field, value, rule."""
    with pytest.raises(InvalidJobError) as refused:
        job(kubernetes=kubernetes)
    assert sentence in str(refused.value)


def test_the_longest_names_fit() -> None:
    """The largest worker of the longest job name: every name that is made of them is at most 63 characters."""
    longest = "a" * names.NAME_LIMIT
    made = [names.controller(longest), names.key(longest), names.files(longest), names.worker_job(longest, 99_999, 999_999)]
    assert max(map(len, [*made, names.static_worker(longest, 99_999)])) <= 63


def test_a_template_with_an_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: never empty."""
    values = {"name": "digits"}
    with pytest.raises(templates.TemplateError, match=r"k8s/files\.yaml\.j2 uses a name that has no value \(files\)"):
        templates.render("files.yaml.j2", values)


def test_the_archive_runs_by_itself(tmp_path: Path) -> None:
    """`python worker.zip agent …` with nothing of ours installed; the same bytes each time."""
    assert worker_archive() == worker_archive()
    (tmp_path / "worker.zip").write_bytes(worker_archive())
    environ = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-I", "-S", tmp_path / "worker.zip", "agent", "script", "x"]
    done = run(command, env=environ, capture_output=True, text=True, check=False)
    assert "the following arguments are required: --controller" in done.stderr


@pytest.mark.parametrize("fields", [FULL, TASK, on_tpu("2x4", chips_per_pod=8, reservation="team-1")])
def test_the_job_file_comes_back_as_it_was(tmp_path: Path, fields: dict[str, Any]) -> None:
    """What the controller reads in its pod is the same job."""
    made = job(**fields)
    (files,) = (o for o in job_objects(made, None) if o["kind"] == "ConfigMap")
    (tmp_path / "job.yaml").write_text(files["data"]["job.yaml"])
    assert load(tmp_path / "job.yaml") == made


def test_packing_is_the_same_on_every_day() -> None:
    """A zip holds times; ours holds always the same."""
    assert pack({"b": b"2", "a": b"1"}) == pack({"a": b"1", "b": b"2"})
