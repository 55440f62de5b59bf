"""Wrong commands: one sentence, exit code 2, nothing started and nothing made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TFRUN, Run

Finish = Callable[..., Run]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.py"], "there is no file none.py; give the path of a script, from "),
        (["folder"], "folder is a folder; give the script in it"),
        (["bad.py"], "bad.py line 2 is not valid Python: "),
        (["nul.py"], "nul.py"),
        (["-m", "no.such.module"], "there is no module no.such.module here or where Python looks"),
        (["-m", "a/b"], "`-m` takes a module's dotted name"),
        (["builtin:digit"], "builtin is 'digit'; it must be one of 'digits'"),
        (["-n", "0", "good.py"], "workers is 0; it must be at least 1"),
        (["-n", "1000000", "good.py"], "workers is 1000000; it must be at most 100000"),
        (["good.py", "--api-key=canary"], "args gives a secret with --api-key"),
        (["--python", "no-such-python", "good.py"], "--python no-such-python is no program that can be run"),
        (["--log-dir", "link", "good.py"], "link is a symbolic link; give the folder itself"),
        (["--log-dir", "good.py/x", "good.py"], "the logs can't be written to good.py/x"),
        (["none.yaml"], "none.yaml can't be read"),
        (["job.yaml", "more"], "job.yaml is a job file, which has its program's arguments; put 'more' into its args"),
        (["task.yaml"], "there is no file none.py; give the path of a task, from "),
        (["module.yaml"], "there is no module no.such here or where Python looks"),
        (["wrong.yaml"], "there is no key worker; did you mean workers?"),
    ],
)
def test_a_wrong_command_is_one_sentence(finish: Finish, tmp_path: Path, arguments: list[str], says: str) -> None:
    """What was given, the rule, what to do: no traceback, no run folder, exit code 2."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "good.py").write_text("print('started')")
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "nul.py").write_bytes(b"x = '\0'")
    (tmp_path / "job.yaml").write_text("program: good.py\n")
    (tmp_path / "task.yaml").write_text("task: none.py\n")
    (tmp_path / "module.yaml").write_text("task: no.such\n")
    (tmp_path / "wrong.yaml").write_text("program: good.py\nworker: 2\n")
    before = sorted(p.name for p in tmp_path.iterdir())
    run = finish(*arguments)
    assert run.process.returncode == 2, run.report()
    assert run.errors().startswith("tfrun: ")
    assert says in run.errors()
    assert run.errors().count("\n") == 1
    assert run.lines == []
    assert "canary" not in run.errors()
    assert [p for p in sorted(p.name for p in tmp_path.iterdir()) if not p.startswith("stderr-")] == before


@pytest.mark.parametrize("arguments", [[], ["-n"], ["-n", "two", "x.py"], ["--frobnicate"]])
def test_a_malformed_command_says_how_it_goes(finish: Finish, arguments: list[str]) -> None:
    """Click's own words, with exit code 2."""
    run = finish(*arguments)
    assert run.process.returncode == 2
    assert "Traceback" not in run.errors()


def test_help_names_the_exit_codes(tmp_path: Path) -> None:
    """`tfrun run --help` is enough to begin."""
    shown = subprocess.run([TFRUN, "run", "--help"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0
    for part in (
        "PROGRAM is a script, a module (-m), `builtin:digits`, or a job file",
        "Exit codes: 0 done",
        "--no-standby",
        "--private-network",
    ):
        assert part in " ".join(shown.stdout.split())


def test_a_local_run_never_imports_tensorflow_or_kubernetes(tmp_path: Path) -> None:
    """The launcher stays light: neither is in its own process."""
    (tmp_path / "p.py").write_text("print('x')")
    script = (
        "import sys; from orchestrator import cli\nsys.argv = ['tfrun', 'run', 'p.py']\n"
        "heavy = {'tensorflow', 'keras', 'kubernetes', 'numpy'}\n"
        "try: cli.main()\nexcept SystemExit: print(sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    out = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert out.stdout.splitlines()[-1] == "[]", out
