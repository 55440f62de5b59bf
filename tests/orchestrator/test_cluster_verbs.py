"""The command line of the verbs about a cluster: what is forwarded, and what costs nothing until it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator import verbs
from orchestrator.access import Access
from orchestrator.cli import tfrun
from orchestrator.logs import Choice
from tests.conftest import TFRUN
from tests.orchestrator.fake_api import kubeconfig

NOWHERE = Access()
THERE = Access(Path("config"), "two", "ml")
WHERE = ["-n", "ml", "--context", "two", "--kubeconfig", "config"]


@pytest.mark.parametrize(
    ("words", "function", "arguments"),
    [
        (["submit", "job.yaml"], "send", (NOWHERE, Path("job.yaml"), False, False)),
        (["submit", "job.yaml", "--follow", "--wait", *WHERE], "send", (THERE, Path("job.yaml"), True, True)),
        (["status", "digits"], "status", (NOWHERE, "digits", "")),
        (["status", "digits", "-o", "wide", *WHERE], "status", (THERE, "digits", "wide")),
        (["logs", "digits"], "show_logs", (NOWHERE, "digits", Choice(), False)),
        (["logs", "-f", "--worker", "1", "--previous", "digits", *WHERE], "show_logs", (THERE, "digits", Choice(1, True), True)),
        (["logs", "--controller", "digits"], "show_logs", (NOWHERE, "digits", Choice(controller=True), False)),
        (["why", "digits", *WHERE], "why", (THERE, "digits")),
        (["wait", "digits"], "wait", (NOWHERE, "digits", None)),
        (["wait", "digits", "--timeout", "1m30s"], "wait", (NOWHERE, "digits", 90.0)),
        (["stop", "digits"], "stop", (NOWHERE, "digits", False)),
        (["stop", "--now", "digits"], "stop", (NOWHERE, "digits", True)),
        (["list"], "jobs", (NOWHERE, False, "")),
        (["list", "-A", "-o", "json", *WHERE], "jobs", (THERE, True, "json")),
        (["check", "job.yaml", *WHERE], "check", (THERE, Path("job.yaml"))),
    ],
)
def test_what_is_forwarded(monkeypatch: pytest.MonkeyPatch, words: list[str], function: str, arguments: tuple[Any, ...]) -> None:
    """Each verb parses, and calls one function."""
    called = []
    monkeypatch.setattr(verbs, function, lambda *given: called.append(given) or "")
    assert CliRunner().invoke(tfrun, words, catch_exceptions=False, standalone_mode=False).exception is None
    assert called == [arguments]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wait", "digits", "--timeout", "soon"], "'soon' must be a duration such as 90s"),
        (["logs", "digits", "--controller", "--worker", "1"], "--controller and --worker exclude each other"),
        (["status", "digits", "-o", "xml"], "'xml' is not one of 'wide', 'json', 'yaml'"),
        (["status", "Digits"], "'Digits' is no job's name; a name is lower-case letters"),
        (["status", "digits", "--kubeconfig", "none"], "there is no kubeconfig none (--kubeconfig)"),
        (["submit", "none.yaml"], "none.yaml can't be read"),
        (["check", "local.yaml"], "the job train has no part `kubernetes`"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, words: list[str], says: str) -> None:
    """Exit code 2 and what is wrong, before anything is asked of a cluster that is not there."""
    (tmp_path / "local.yaml").write_text("program: train.py\n")
    (tmp_path / "train.py").touch()
    kubeconfig(tmp_path, "http://127.0.0.1:1")
    done = subprocess.run(
        [TFRUN, *words], cwd=tmp_path, env={"KUBECONFIG": "kubeconfig", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_client() -> None:
    """`tfrun --help` imports neither the Kubernetes client nor what draws tables."""
    heavy = {"kubernetes", "aiohttp", "rich", "pydantic"}
    script = f"import sys\nfrom orchestrator import cli\nprint(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy}))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout == "[]\n"
