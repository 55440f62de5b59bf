"""What the agent does about its children, seen from outside: real processes, no TensorFlow."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Run, Start

Finish = Callable[..., Run]
Program = Callable[[str], Path]


def test_a_fork_of_the_program_is_not_the_program(finish: Finish, tmp_path: Path) -> None:
    """A forked process may report as it likes: nothing of it is taken for the program's own progress, and nothing breaks."""
    (tmp_path / "p.py").write_text(
        "import os\nfrom worker_image import report\nreport.progress(1, 10)\n"
        "pid = os.fork()\nif pid == 0:\n    report.progress(7, 10); report.saved(7); print(report.save_due()); os._exit(0)\n"
        "os.waitpid(pid, 0)\nreport.progress(2, 10)\n"
    )
    run = finish("p.py")
    assert run.process.returncode == 0, run.report()
    assert run.lines == ["[0] False"]


def test_report_is_harmless_outside_tfrun() -> None:
    """A script with reports runs without tfrun as it did before."""
    from worker_image import report

    report.progress(1, 2, loss=0.5)
    report.saved(1)
    assert not report.save_due()
    with report.activity("evaluation"):
        pass


def test_what_a_program_does_is_told(start: Start, tmp_path: Path) -> None:
    """During a named activity no step is expected."""
    (tmp_path / "p.py").write_text(
        "import time\nfrom worker_image import report\nreport.progress(1, 10)\n"
        "with report.activity('evaluation'):\n    print('evaluating', flush=True); time.sleep(13)\nreport.progress(2, 10)\n"
    )
    run = start("p.py")
    run.until("evaluating")
    assert run.wait() == 0
    assert "made no step" not in run.errors()


def test_sys_exit_with_a_text_is_a_failure_with_that_text_in_the_log(finish: Finish, tmp_path: Path) -> None:
    """As Python does it: the text on stderr, exit code 1."""
    (tmp_path / "p.py").write_text("import sys; sys.exit('no data')")
    run = finish("p.py")
    assert run.process.returncode == 1
    assert run.log(0, 0) == "no data\n"
    assert "worker 0 exited with code 1" in run.errors()


def test_a_program_that_hangs_at_its_exit_is_ended(finish: Finish, tmp_path: Path) -> None:
    """After an exception a program has two seconds for its exit handlers, which may wait for peers that are gone."""
    (tmp_path / "p.py").write_text("import atexit, time\natexit.register(time.sleep, 1000)\nraise ValueError('x')\n")
    run = finish("p.py")
    assert run.process.returncode == 1
    assert "worker 0 raised ValueError: x (p.py:3)" in run.errors()


def test_a_program_can_handle_interrupts(finish: Finish, tmp_path: Path) -> None:
    """The program starts with Python's own signal handling, not with ours."""
    (tmp_path / "p.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt:\n    print('interrupted', signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
    )
    assert finish("p.py").lines == ["[0] interrupted True"]


def test_a_program_that_ends_by_sigterm_is_started_again_for_nothing(start: Start, program: Program) -> None:
    """SIGTERM straight to a program is a preemption: no restart is spent."""
    run = start("-n", "2", program("steps"), "60", "0.05")
    run.until("stepping", times=2)
    run.child(1).send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "worker 1 was killed by SIGTERM (told to end from outside); starting again\n" in run.errors()


def test_two_programs_of_one_folder_do_not_meet(start: Start, program: Program) -> None:
    """Two runs at once have their own ports, folders and processes."""
    runs = [start("-n", "2", program("steps"), "30", "0.05") for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    folders = [p for p in (runs[0].cwd / ".tfrun").iterdir() if p.is_dir() and not p.is_symlink()]
    assert len(folders) == 2
