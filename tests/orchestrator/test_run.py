"""`tfrun run` for real, without TensorFlow: every end is clear, and nothing is left behind."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run, Start

Finish = Callable[..., Run]
Program = Callable[[str], Path]


def test_each_worker_gets_its_own_tf_config(finish: Finish, tmp_path: Path) -> None:
    """Every worker sees the same cluster of loopback ports, and its own index."""
    (tmp_path / "show.py").write_text("import os; print(os.environ['TF_CONFIG'])")
    run = finish("-n", "3", "show.py")
    assert run.process.returncode == 0, run.report()
    shown = {line[:4]: json.loads(line[4:]) for line in run.lines}
    assert sorted(shown) == ["[0] ", "[1] ", "[2] "]
    clusters = {json.dumps(config["cluster"]) for config in shown.values()}
    assert len(clusters) == 1
    addresses = shown["[0] "]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)
    assert [shown[f"[{i}] "]["task"] for i in range(3)] == [{"type": "worker", "index": i} for i in range(3)]


def test_the_program_runs_as_python_itself_would_run_it(finish: Finish, tmp_path: Path) -> None:
    """Arguments, __main__, __file__, the script's own folder first, and modules beside it."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("x = 'beside'")
    (tmp_path / "sub" / "p.py").write_text(
        "import sys, os, beside, __main__\n"
        "assert __name__ == '__main__' and __main__.beside is beside and os.path.basename(__file__) == 'p.py'\n"
        "assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path\n"
        "print(sys.argv, sys.stdin.read() == '')\n"
    )
    run = finish("sub/p.py", "--epochs", "5", "-n", "9", "--", "x")
    assert run.lines == ["[0] ['sub/p.py', '--epochs', '5', '-n', '9', '--', 'x'] True"], run.report()


def test_a_module_runs_as_python_m_would_run_it(finish: Finish, tmp_path: Path) -> None:
    """A package's __main__, with the current folder on the path."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("print('package', __name__)")
    (tmp_path / "pack" / "__main__.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    run = finish("-m", "pack", "-v")
    assert run.lines == ["[0] package pack", "[0] __main__ pack ['-v']"], run.report()


def test_multiprocessing_works_in_a_program(finish: Finish, tmp_path: Path) -> None:
    """Spawned processes find the program's functions: __main__ is the script."""
    (tmp_path / "p.py").write_text(
        "import multiprocessing as mp\ndef double(x): return 2 * x\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(2) as pool: print(pool.map(double, [1, 2]))\n"
    )
    run = finish("p.py")
    assert run.lines == ["[0] [2, 4]"], run.report()
    assert "left processes" not in run.errors()


def test_the_run_folder_tells_everything(finish: Finish, program: Program, tmp_path: Path) -> None:
    """The job as understood, a log for each worker and attempt, what happened, the result; for this user's eyes only."""
    run = finish("-n", "2", program("steps"), "4", "0.01")
    assert run.process.returncode == 0, run.report()
    assert run.result()["result"] == "succeeded"
    assert run.result()["attempts"] == 1
    job = json.loads((run.folder / "job.yaml").read_text())
    assert (job["name"], job["workers"], job["args"]) == ("steps", 2, ["4", "0.01"])
    assert run.log(1, 0).splitlines() == ["begin 1 0", "stepping 1 0", "end 1 0"]
    modes = {path.stat().st_mode & 0o777 for path in run.folder.rglob("*")}
    assert modes == {0o600, 0o700}
    assert (tmp_path / ".tfrun" / ".gitignore").read_text() == "*\n"
    assert f"logs: .tfrun/{run.folder.name}" in run.errors()


def test_a_job_file_means_the_same_as_the_command(finish: Finish, program: Program, tmp_path: Path) -> None:
    """`tfrun run job.yaml` runs the program with its arguments and variables; -n overrides the file."""
    (tmp_path / "p.py").write_text("import os, sys; print(os.environ['GREETING'], sys.argv[1:], os.environ['TFRUN_WORKERS'])")
    (tmp_path / "job.yaml").write_text("name: hello\nprogram: p.py\nargs: [a b, '5']\nworkers: 1\nenv: {GREETING: no}\n")
    run = finish("job.yaml")
    assert run.lines == ["[0] no ['a b', '5'] 1"], run.report()
    assert run.folder.name.startswith("hello-")
    assert sorted(finish("-n", "2", "job.yaml").lines) == ["[0] no ['a b', '5'] 2", "[1] no ['a b', '5'] 2"]


def test_quiet_shows_no_output_but_keeps_it(finish: Finish, program: Program) -> None:
    """-q leaves the workers' lines to the logs."""
    run = finish("-q", program("steps"), "3", "0")
    assert run.lines == []
    assert "stepping 0 0" in run.log(0, 0)
    assert "tfrun: done" in run.errors()


def test_log_dir_chooses_the_place(finish: Finish, program: Program, tmp_path: Path) -> None:
    """--log-dir gets the run's folder; a second run in the same second gets another."""
    for _ in range(2):
        assert finish("--log-dir", "logs/mine", program("steps"), "1", "0").process.returncode == 0
    runs = [p for p in (tmp_path / "logs" / "mine").iterdir() if not p.is_symlink()]
    assert len(runs) == 2


def test_a_failure_on_one_worker_ends_the_others_at_once(finish: Finish, program: Program) -> None:
    """D33: 0 on one worker and 3 on the other is a failure that is named, tried once more, and then final."""
    run = finish("-n", "2", program("codes"), "0", "3")
    assert run.process.returncode == 1
    assert "worker 1 exited with code 3, twice in a row at the same place with no progress between" in run.errors()
    assert [f["worker"] for f in run.result()["failures"]] == [1, 1]


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [
        (0, 0, "tfrun: done"),
        (1, 1, "exited with code 1"),
        (42, 1, "exited with code 42"),
        (137, 1, "exited with code 137, a shell's way to say SIGKILL"),
        (139, 1, "exited with code 139, a shell's way to say SIGSEGV (segmentation fault)"),
        (255, 1, "exited with code 255"),
    ],
)
def test_every_exit_code_has_a_meaning(finish: Finish, program: Program, tmp_path: Path, code: int, exit_code: int, says: str) -> None:
    """D33: success, failure, and what a shell makes of a signal."""
    (tmp_path / "job.yaml").write_text(f"program: {program('codes')}\nargs: ['{code}']\nrestarts: {{max: 1}}\n")
    run = finish("job.yaml")
    assert run.process.returncode == exit_code
    assert says in run.errors()


def test_143_is_a_preemption_and_spends_nothing(start: Start, tmp_path: Path) -> None:
    """D33: a program that ends as SIGTERM ends it is started again without a mark."""
    (tmp_path / "p.py").write_text("import os, sys\nif os.environ['TFRUN_ATTEMPT'] == '0': sys.exit(143)\nprint('again')")
    (tmp_path / "job.yaml").write_text("program: p.py\nrestarts: {max: 0}\n")
    run = start("job.yaml")
    assert run.wait() == 0
    assert "a shell's way to say SIGTERM" in run.errors()


def test_an_exception_is_named_with_its_place(finish: Finish, tmp_path: Path) -> None:
    """The traceback is Python's own, without our frames; the summary has type, message and the user's line."""
    (tmp_path / "p.py").write_text("def f():\n    raise ValueError('bad  thing\\nhere')\n\nf()\n")
    run = finish("p.py")
    assert run.process.returncode == 1
    assert "worker 0 raised ValueError: bad thing here (p.py:2)" in run.errors()
    trace = run.log(0, 0)
    assert trace.startswith("Traceback (most recent call last):\n  File")
    assert "launch.py" not in trace


def test_a_killed_program_is_replaced_and_the_others_with_it(start: Start, program: Program) -> None:
    """SIGKILL of one program: all start attempt 1."""
    run = start("-n", "3", program("steps"), "100", "0.05")
    run.until("stepping", times=3)
    run.child(1).send_signal(signal.SIGKILL)
    assert sorted(line[4:] for line in run.until("begin", times=3)) == ["begin 0 1", "begin 1 1", "begin 2 1"]
    assert run.wait() == 0
    assert "worker 1 was killed by SIGKILL (killed from outside); starting again (restart 1 of 10)" in run.errors()
    assert "first failure: attempt 0, worker 1 was killed by SIGKILL" in run.errors()


def test_a_killed_agent_takes_its_whole_worker_along(start: Start, program: Program) -> None:
    """SIGKILL of an agent: its program and what that started die too, a new agent joins, the others stay."""
    run = start("-n", "2", program("waits"), "family")
    run.until("waiting", times=2)
    old, other = run.agent(1), run.agent(0)
    below = old.children(recursive=True)
    assert len(below) == 3
    old.send_signal(signal.SIGKILL)
    run.until("waiting", times=2)
    assert not [p for p in below if p.is_running()]
    assert run.agent(0) == other
    assert run.agent(1) != old
    assert "worker 1 was lost" in run.errors()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


def test_a_stopped_program_is_noticed_and_its_stacks_are_kept(start: Start, program: Program) -> None:
    """E37: SIGSTOP of one program: found, written down where it stood, started again."""
    run = start("-n", "2", program("steps"), "60", "0.05")
    run.until("stepping", times=2)
    run.child(1).send_signal(signal.SIGSTOP)
    run.until("begin", times=2)
    assert run.wait() == 0
    assert "worker 1 was stopped by a signal (SIGSTOP)" in run.errors()
    assert 'steps.py", line' in run.log(1, 0)


def test_a_silent_agent_is_given_up(start: Start, program: Program) -> None:
    """SIGSTOP of an agent: its worker is replaced, and the stopped agent is not left behind."""
    run = start("-n", "2", program("steps"), "60", "0.05")
    run.until("stepping", times=2)
    run.agent(1).send_signal(signal.SIGSTOP)
    run.until("begin", times=2)
    assert run.wait() == 0
    assert "worker 1 was lost: its agent was silent for" in run.errors()


def test_a_training_that_makes_no_step_is_started_again(start: Start, program: Program) -> None:
    """E37: a deadlock is found within about ten seconds, though every process lives."""
    run = start("-n", "2", program("steps"), "8", "0.05", "hang")
    run.until("begin", times=4)
    assert run.wait() == 0
    assert "worker 1 made no step for" in run.errors()
    assert 'steps.py", line' in run.log(1, 0)


def test_a_worker_that_never_joins_ends_the_job_at_the_deadline(finish: Finish, program: Program, tmp_path: Path) -> None:
    """E35: exit code 4, with its index."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *"--worker 1 "*) exec sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "job.yaml").write_text(f"program: {program('steps')}\nargs: ['3', '0']\nworkers: 3\ndeadlines: {{start: 2s}}\n")
    run = finish("--python", fake, "job.yaml")
    assert run.process.returncode == 4
    assert "failed: worker 1 did not join within 2 s (deadlines.start)" in run.errors()


def test_an_interpreter_that_is_none_can_not_be_launched(finish: Finish, program: Program) -> None:
    """Exit code 3, with what the system said."""
    run = finish("--python", "/bin/false", program("steps"), "1", "0")
    assert run.process.returncode == 3
    assert "worker 0 could not be started: its agent ended with code 1" in run.errors()


def test_ctrl_c_ends_in_order(start: Start, program: Program) -> None:
    """E39: a program that handles SIGTERM may end by itself; exit code 130."""
    run = start("-n", "2", program("waits"), "polite")
    run.until("waiting", times=2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert [line[4:] for line in run.lines[-2:]] == ["told to end", "told to end"]
    assert "tfrun: stopped by Ctrl-C" in run.errors()


def test_a_second_ctrl_c_ends_at_once(start: Start, program: Program) -> None:
    """E39: a program that ignores SIGTERM holds up the end for the grace, unless asked twice."""
    run = start("-n", "2", program("waits"), "deaf")
    run.until("waiting", times=2)
    run.process.send_signal(signal.SIGINT)
    run.until("SIGTERM ignored", times=2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(timeout=8.0) == 130


def test_sigterm_ends_with_143(start: Start, program: Program) -> None:
    """E39: SIGTERM to the launcher ends it as Ctrl-C does; a program without a handler is not waited for."""
    run = start("-n", "2", program("waits"))
    run.until("waiting", times=2)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(timeout=8.0) == 143


@pytest.mark.parametrize("how", ["family", "deaf"])
def test_a_killed_controller_leaves_nothing(start: Start, program: Program, how: str) -> None:
    """C25: SIGKILL of the launcher ends every agent, program and grandchild."""
    run = start("-n", "2", program("waits"), how)
    run.until("waiting", times=2)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert run.gone(), run.processes()


def test_a_killed_controller_leaves_not_even_a_stopped_agent(start: Start, program: Program) -> None:
    """C25: an agent that is stopped when the launcher dies wakes up and cleans up."""
    run = start("-n", "2", program("waits"), "family")
    run.until("waiting", times=2)
    run.agent(1).send_signal(signal.SIGSTOP)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert run.gone(), run.processes()


def test_a_killed_controller_can_be_started_again(start: Start, program: Program, tmp_path: Path) -> None:
    """C25: the same command runs again as if nothing had been."""
    run = start("-n", "2", program("waits"))
    run.until("waiting", times=2)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    again = start("-n", "2", program("steps"), "2", "0")
    assert again.wait() == 0


def test_a_program_that_leaves_a_child_is_told_so(finish: Finish, program: Program) -> None:
    """What a finished program left running is ended, also from a session of its own, and named."""
    run = finish(program("waits"), "leaves")
    assert run.process.returncode == 0
    assert "worker 0's program left processes behind (sleep); they were ended" in run.errors()


def test_sigterm_to_an_agent_saves_everywhere_at_the_same_step(start: Start, program: Program) -> None:
    """E39: one preempted worker: all save at one step, leave, and go on with its replacement."""
    run = start("-n", "3", program("steps"), "60", "0.1", "saver")
    run.until("stepping", times=3)
    old = run.agent(2)
    old.send_signal(signal.SIGTERM)
    saved = run.until("saved at", times=3)
    assert len({line[4:] for line in saved}) == 1, saved
    assert sorted(line[:3] for line in saved) == ["[0]", "[1]", "[2]"]
    run.until("begin", times=3)
    assert run.agent(2) != old
    assert run.wait() == 0
    assert "every worker saved at step" in run.errors()
    assert "worker 2 was told to leave (SIGTERM); starting again" in run.errors()
    assert run.result()["failures"][0]["kind"] == "preempted"


def test_sigterm_to_the_launcher_saves_first(start: Start, program: Program) -> None:
    """E39: a coordinated save, then exit 143."""
    run = start("-n", "2", program("steps"), "400", "0.1", "saver")
    run.until("stepping", times=2)
    run.process.send_signal(signal.SIGTERM)
    saved = run.until("saved at", times=2)
    assert len({line[4:] for line in saved}) == 1, saved
    assert run.wait() == 143


def test_a_secret_in_the_environment_stays_there(start: Start, program: Program) -> None:
    """F46: neither the user's secrets nor the run's own are on a command line, in a log, or in the run folder."""
    canary = "canary-" + "7f3a9"
    run = start("-n", "2", program("waits"), MY_TOKEN=canary)
    run.until("waiting", times=2)
    for process in run.processes():
        assert canary not in " ".join(process.cmdline())
    run.process.send_signal(signal.SIGINT)
    run.wait()
    texts = [p.read_text(errors="replace") for p in run.folder.rglob("*") if p.is_file()]
    assert not [t for t in (*texts, run.report()) if canary in t]


def test_the_launcher_listens_on_the_loopback_alone(start: Start, program: Program) -> None:
    """F49: nobody on the network reaches the controller, and no reserved port listens."""
    run = start("-n", "2", program("waits"))
    run.until("waiting", times=2)
    listening = [c.laddr.ip for p in run.processes() for c in p.net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    run.process.send_signal(signal.SIGINT)
    run.wait()


def test_a_script_that_sets_tf_config_is_warned_by_name(finish: Finish, tmp_path: Path) -> None:
    """A script from a tutorial would overwrite what tfrun made: it is told the line."""
    (tmp_path / "p.py").write_text("import os, json\nos.environ['TF_CONFIG'] = json.dumps({})\n")
    run = finish("-n", "2", "p.py")
    assert run.process.returncode == 0
    assert run.errors().count("p.py line 2 sets TF_CONFIG itself") == 1
