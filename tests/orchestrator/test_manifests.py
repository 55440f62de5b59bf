"""The objects of a job on Kubernetes: what they hold, that nothing can break out of its place, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import yaml as yaml_1_1  # what kubectl reads; PyYAML comes with the Kubernetes client
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import names, spec, submit, templates
from orchestrator.archive import pack, worker_archive
from orchestrator.errors import InvalidJobError
from orchestrator.jobfile import load
from orchestrator.manifests import job_objects, worker_objects
from orchestrator.spec import JobSpec
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


@pytest.mark.parametrize(("shape", "fields"), [("small", {}), ("full", FULL)])
def test_the_objects_are_these(shape: str, fields: dict[str, Any]) -> None:
    """Compared whole with a file; the archives, which change with every source, are left out of it."""
    made = job(**fields)
    objects = [*job_objects(made, None), *worker_objects(made, worker=1, incarnation=3)]
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["binaryData"] = dict.fromkeys(each["binaryData"], "")
    text, golden = submit.text(objects), GOLDEN / f"{shape}.yaml"
    assert text == golden.read_text(), f"if this is what you want, write it there: {_write(golden, text)}"


def _write(golden: Path, text: str) -> str:
    new = golden.with_suffix(".new")
    new.write_text(text)
    return f"mv {new} {golden}"


@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_out_of_its_place(argument: str, value: str) -> None:
    """Quotes, newlines, `{{`, YAML's traps, emoji: they reach the pod as they were given, for a reader of YAML 1.1 and one of 1.2."""
    made = job(args=[argument], env={"GIVEN": value})
    meant = job_objects(made, None)
    for each in meant:
        each.pop("binaryData", None)  # our own archives, which are long
    text = submit.text(meant)
    assert list(yaml_1_1.load_all(text, yaml_1_1.CSafeLoader)) == meant
    container = group(meant)
    assert _expanded(container["command"][-1]) == argument
    assert _expanded(next(e["value"] for e in container["env"] if e["name"] == "GIVEN")) == value


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


def test_the_same_job_gives_the_same_bytes(tmp_path: Path) -> None:
    """B16: whatever the hash seed, the time zone, the locale, the moment."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text(json.dumps({"program": "train.py", "kubernetes": KUBERNETES}))
    seen = set()
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        environ = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"}
        seen.add(run([TFRUN, "render", "job.yaml"], cwd=tmp_path, env=environ, check=True, capture_output=True).stdout)
    assert len(seen) == 1


def test_size_does_not_grow_with_the_workers() -> None:
    """B14: at most 300 KB for a thousand, and within 1 % of two."""
    two, thousand = (len(submit.text(job_objects(job(workers=n), None))) for n in (2, 1000))
    assert thousand < 300_000
    assert thousand < 1.01 * two


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


def test_code_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, with the path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidJobError, match=r"the program train.py can't be read \(No such file or directory\); give its path from"):
        submit.objects(job(program="train.py"))


def test_code_that_is_too_large_is_refused() -> None:
    """A ConfigMap holds a megabyte; the way out is named."""
    noise = bytes(i * i % 251 for i in range(997)) * 1200
    large = b"".join(bytes([i % 256]) + noise[i : i + 9] for i in range(0, 1_000_000, 7))
    with pytest.raises(InvalidJobError, match="MB in a ConfigMap, which holds at most 1 MB; put it into the image"):
        job_objects(job(program="train.py"), large)


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
    assert max(map(len, made)) <= 63


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


def test_the_job_file_comes_back_as_it_was(tmp_path: Path) -> None:
    """What the controller reads in its pod is the same job."""
    made = job(**FULL)
    (files,) = (o for o in job_objects(made, None) if o["kind"] == "ConfigMap")
    (tmp_path / "job.yaml").write_text(files["data"]["job.yaml"])
    assert load(tmp_path / "job.yaml") == made


def test_packing_is_the_same_on_every_day() -> None:
    """A zip holds times; ours holds always the same."""
    assert pack({"b": b"2", "a": b"1"}) == pack({"a": b"1", "b": b"2"})
