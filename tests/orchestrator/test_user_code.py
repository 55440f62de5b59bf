"""`code`: a folder that goes along to a cluster, and that a local run starts the program in."""

from __future__ import annotations

import base64
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import spec, submit, user_code
from orchestrator.errors import InvalidJobError
from orchestrator.manifests import is_of_workers
from tests.conftest import Run
from tests.orchestrator.test_manifests import job


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script that imports its neighbours, in the current folder."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "src" / "parts"
    package.mkdir(parents=True)
    (tmp_path / "src" / "train.py").write_text("import helper\nfrom parts import layers\nprint('sum', helper.ONE + layers.TWO)\n")
    (tmp_path / "src" / "helper.py").write_text("ONE = 1\n")
    (package / "layers.py").write_text("TWO = 2\n")
    (tmp_path / "src" / "settings.json").write_text("{}")
    return tmp_path / "src"


def shipped(made: spec.JobSpec) -> dict[str, bytes]:
    """What the pods find: path → content."""
    (files,) = (o for o in submit.objects(made) if o["kind"] == "ConfigMap")
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(files["binaryData"]["code.zip"]))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_folder_goes_along(code: Path) -> None:
    """With the program's path from there, whatever it is that is started."""
    for program in ("train.py", "-m parts.layers"):
        made = job(program=program, code="src")
        assert sorted(shipped(made)) == ["helper.py", "parts/layers.py", "settings.json", "train.py"]
        (group,) = filter(is_of_workers, submit.objects(made))
        words = group["spec"]["template"]["spec"]["containers"][0]["command"]
        assert words[words.index("--code") + 1 :] == ["/tfrun/code.zip", *made.command()]


def test_the_folder_goes_along_with_a_task(code: Path) -> None:
    """Whose path, or dotted name, is given from there."""
    for task in ("parts/layers.py", "parts.layers"):
        made = job(program=None, task=task, code="src")
        assert "settings.json" in shipped(made)
        (group,) = filter(is_of_workers, submit.objects(made))
        words = group["spec"]["template"]["spec"]["containers"][0]["command"]
        assert words[-6:] == ["--code", "/tfrun/code.zip", "module", "worker_image.train", "--task", task]
    with pytest.raises(InvalidJobError, match=r"there is no file layers.py in the code src; the task's path is given from there"):
        user_code.archive(job(program=None, task="layers.py", code="src"))


def test_what_nobody_means_stays(code: Path) -> None:
    """Hidden files, compiled ones, virtual environments."""
    expected = shipped(job(program="train.py", code="src"))
    for path in (".git/config", ".env", "__pycache__/x.py", "parts/__pycache__/y.pyc", "old.pyc", "venv/lib/site.py", "venv/pyvenv.cfg"):
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        (code / path).write_text("no")
    assert shipped(job(program="train.py", code="src")) == expected


def test_the_same_files_are_the_same_bytes(code: Path) -> None:
    """Whatever their order in the folder, their times, their modes."""
    before = user_code.archive(job(program="train.py", code="src"))
    content = (code / "helper.py").read_bytes()
    (code / "helper.py").unlink()
    (code / "helper.py").write_bytes(content)
    (code / "helper.py").chmod(0o700)
    os.utime(code / "train.py", (0, 0))
    assert user_code.archive(job(program="train.py", code="src")) == before


def test_a_link_inside_is_a_file(code: Path) -> None:
    """It goes along as what it leads to."""
    (code / "same.py").symlink_to("helper.py")
    assert shipped(job(program="train.py", code="src"))["same.py"] == b"ONE = 1\n"


def test_what_would_lead_outside_is_refused(code: Path, tmp_path: Path) -> None:
    """A link to a file elsewhere would send what nobody meant to send; a link to a folder may never end."""
    (tmp_path / "secret").write_text("canary")
    for target in (tmp_path / "secret", Path("../secret"), tmp_path, Path()):
        (code / "link").symlink_to(target)
        with pytest.raises(InvalidJobError, match=r"src/link is a link out of the code, or to a folder"):
            user_code.archive(job(program="train.py", code="src"))
        (code / "link").unlink()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda code: os.mkfifo(code / "pipe"), "src/pipe is neither a file nor a folder"),
        (lambda code: (code / "a\udcff.py").write_text(""), "has a name that no archive can hold"),
        (lambda code: (code / "lost").symlink_to("nothing"), "src/lost is neither a file nor a folder"),
        (lambda code: os.truncate(_new(code / "data.bin"), 30_000_000), r"src is 30 MB \(src/data.bin alone 30\), and a ConfigMap holds"),
        (
            lambda code: (code / "noise.bin").write_bytes(os.urandom(1_200_000)),
            r"\(code.zip 1,\d+,\d+\), and a ConfigMap holds at most 1,048,576",
        ),
        (lambda code: (code / "train.py").unlink(), "there is no file train.py in the code src; the program's path is given from there"),
    ],
)
def test_what_can_not_go_along_is_refused(code: Path, make: Callable[[Path], Any], says: str) -> None:
    """Before anything is sent, with the file and a way out."""
    make(code)
    with pytest.raises(InvalidJobError, match=says):
        submit.objects(job(program="train.py", code="src"))


def _new(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"program": "/app/train.py", "code": "src"}, "has the code src and no program in it"),
        ({"program": "../train.py", "code": "src"}, "has the code src and no program in it"),
        ({"task": "/app/my_task.py", "code": "src"}, "has the code src and no task in it; give its path from there"),
        ({"builtin": "digits", "code": "src"}, "has the code src and no program in it"),
        ({"program": "train.py", "code": ""}, "code is ''; it must not be empty"),
    ],
)
def test_a_program_that_is_not_in_the_code_is_refused(fields: dict[str, Any], says: str) -> None:
    """In one sentence."""
    with pytest.raises(InvalidJobError) as refused:
        spec.make(fields, "the job")
    assert says in str(refused.value)


@pytest.mark.parametrize("missing", ["nowhere", "src/train.py"])
def test_code_that_is_no_folder_is_refused(code: Path, missing: str) -> None:
    """With where it was looked for."""
    with pytest.raises(InvalidJobError, match=f"code is {missing}, which is no folder; give its path from"):
        user_code.archive(job(program="train.py", code=missing))


@pytest.mark.parametrize("statement", ["import helper", "from helper import ONE", "def later():\n    import parts.layers"])
def test_a_script_that_goes_alone_imports_nothing_beside_it(code: Path, statement: str) -> None:
    """It would find it here and not there; the way out is named."""
    (code / "alone.py").write_text(f"import os, json\n{statement}\n")
    with pytest.raises(
        InvalidJobError, match=r"beside it and would stay behind; add `code: src` and `program: alone.py`, and what is in that folder"
    ):
        user_code.archive(job(program="src/alone.py"))
    with pytest.raises(InvalidJobError, match=r"add `code: src` and `task: alone.py`, and what is in that folder"):
        user_code.archive(job(program=None, task="src/alone.py"))


def test_a_local_run_starts_there(code: Path, finish: Callable[..., Run], tmp_path: Path) -> None:
    """The same job file means the same: the program's current folder is the code, the run's folder stays where tfrun was started."""
    (code / "train.py").write_text("import helper, os\nprint(helper.ONE, os.path.basename(os.getcwd()), os.path.exists('settings.json'))\n")
    (tmp_path / "job.yaml").write_text("program: train.py\ncode: src\n")
    run = finish("job.yaml")
    assert run.process.returncode == 0, run.report()
    assert run.lines == ["[0] 1 src True"]
    assert run.folder.is_relative_to(tmp_path / ".tfrun")
    (tmp_path / "job.yaml").write_text("program: -m parts.layers\ncode: src\n")
    assert finish("job.yaml").process.returncode == 0
