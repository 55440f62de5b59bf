"""What is shipped, and the rules of the tree."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from orchestrator.cli import tfrun
from tests.conftest import REPO


def test_the_wheel_has_every_module(tmp_path: Path) -> None:
    """What an installation gets is what the tree has, and the command with it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=REPO, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("tfrun-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        (entry_points,) = [archive.read(name).decode() for name in shipped if name.endswith("entry_points.txt")]
    modules = {str(path.relative_to(REPO)) for package in ("orchestrator", "worker_image") for path in (REPO / package).rglob("*.py")}
    assert modules <= shipped
    assert "tfrun = orchestrator.cli:main" in entry_points


@pytest.mark.parametrize("command", sorted(name for name, command in tfrun.commands.items() if not command.hidden))
def test_every_command_and_option_is_in_the_readme(command: str) -> None:
    """The README tells of everything that the command line has."""
    readme = (REPO / "README.md").read_text()
    assert f"`tfrun {command}" in readme
    for parameter in tfrun.commands[command].params:
        if isinstance(parameter, click.Option):
            assert all(f"`{option}" in readme or f"{option}`" in readme or option == "--workers" for option in parameter.opts), (
                parameter.opts
            )


@pytest.mark.parametrize("lock", sorted((REPO / "requirements").glob("*.lock")), ids=lambda path: path.name)
def test_locks_are_exact_hashed_and_without_addresses(lock: Path) -> None:
    """Every requirement has one version and hashes, and no line names a server."""
    text = lock.read_text()
    requirements = re.split(r"\n(?=[a-z0-9])", text)
    assert len(requirements) > 5
    for requirement in requirements:
        assert re.match(r"[a-z0-9-]+==", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in text
