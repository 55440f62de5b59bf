"""--private-network: nothing but a loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import private_network
from tests.conftest import Run

SHOW = (
    "import os, socket\n"
    "print(sorted(name for _, name in socket.if_nameindex()), os.getuid())\n"
    "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); socket.socket().connect(s.getsockname()); print('loopback works')\n"
)
# Everything is imported before, since nobody may not read root's files; a process that changes its user is no owner of its /proc files
# until it says that it may be dumped (PR_SET_DUMPABLE, 4), as a newly executed program may.
AS_NOBODY = (
    "import ctypes, os, socket; from orchestrator import private_network\n"
    "os.setgroups([]); os.setgid(65534); os.setuid(65534); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
)


def may_make_namespaces(*, as_nobody: bool) -> bool:
    code = (AS_NOBODY if as_nobody else "") + "from orchestrator import private_network; private_network.enter()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not may_make_namespaces(as_nobody=False), reason="this system allows no network namespace")


@needs_namespaces
def test_the_workers_see_only_a_loopback(finish: Callable[..., Run], tmp_path: Path) -> None:
    """The workers meet each other, and no address of this machine is in their network; they stay the same user."""
    (tmp_path / "p.py").write_text(SHOW)
    run = finish("--private-network", "-n", "2", "p.py")
    assert run.process.returncode == 0, run.report()
    import os

    assert sorted(run.lines) == sorted(f"[{i}] {line}" for i in range(2) for line in (f"['lo'] {os.getuid()}", "loopback works"))
    assert "run whatever graph" not in run.errors()


@pytest.mark.skipif(
    not may_make_namespaces(as_nobody=True),
    reason="this system allows an ordinary user no user namespace, or these tests are not run by root",
)
def test_an_ordinary_user_needs_no_privilege() -> None:
    """A user namespace gives the right, and the user stays who it is."""
    code = AS_NOBODY + "private_network.enter()\n" + SHOW
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout == "['lo'] 65534\nloopback works\n", out.stderr


def test_a_system_without_namespaces_is_a_clear_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel says no: the reason and what to do."""

    class Refusing:
        @staticmethod
        def unshare(_flags: int) -> int:
            import ctypes

            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(private_network.ctypes, "CDLL", lambda *_args, **_kw: Refusing())
    with pytest.raises(private_network.InvalidJobError, match=r"lets user \d+ make no namespace \(EPERM\); leave it out"):
        private_network.enter()
    monkeypatch.setattr(private_network.sys, "platform", "darwin")
    with pytest.raises(private_network.InvalidJobError, match="needs Linux's namespaces"):
        private_network.enter()


def test_other_addresses_are_those_that_others_reach() -> None:
    """Neither loopback nor link-local ones count."""
    assert not [a for a in private_network.other_addresses() if a.startswith(("127.", "::1", "fe80:"))]


def test_a_machine_with_other_addresses_is_warned(finish: Callable[..., Run], tmp_path: Path) -> None:
    """TensorFlow's servers listen everywhere: said once at the start, where there is an everywhere."""
    (tmp_path / "p.py").write_text("print('x')")
    told = finish("-n", "2", "p.py").errors().count("run whatever graph they are sent; use --private-network")
    assert told == (1 if private_network.other_addresses() else 0)
