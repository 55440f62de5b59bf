"""The workers' output through the launcher: whole lines, all of them, in bounded memory, and never in a worker's way."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.output import LONGEST_LINE, _Followed, _lines
from tests.conftest import TFRUN, Run, Start

Finish = Callable[..., Run]


@given(st.lists(st.binary(max_size=40)), st.data())
def test_every_line_comes_whole_and_once_however_it_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    """Whatever bytes a program writes, in whatever pieces they are read: each line once, in order, with its prefix."""
    text = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    followed, out, rest = _Followed(0, b"[0] "), b"", text
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        out += _lines(followed, rest[:cut])
        rest = rest[cut:]
    out += _lines(followed, b"", end=True)
    assert out == b"".join(b"[0] " + line.replace(b"\n", b"") + b"\n" for line in lines)


def test_a_last_line_without_an_end_is_shown() -> None:
    """What a program wrote before it died is not held back."""
    followed = _Followed(0, b"[0] ")
    assert _lines(followed, b"no newline") == b""
    assert _lines(followed, b"", end=True) == b"[0] no newline\n"


def test_an_endless_line_is_shown_in_pieces() -> None:
    """E42: no newline for ever, and still no more than one piece is kept."""
    followed, out = _Followed(0, b"[0] "), b""
    for _ in range(10):
        out += _lines(followed, b"x" * LONGEST_LINE)
        assert len(followed.partial) <= LONGEST_LINE
    assert out.replace(b"[0] ", b"").replace(b"\n", b"") + followed.partial == b"x" * 10 * LONGEST_LINE


def test_bytes_that_are_no_text_come_through(finish: Finish, tmp_path: Path) -> None:
    """E42: invalid UTF-8 and NUL bytes neither end the job nor change."""
    (tmp_path / "p.py").write_text("import os\nos.write(1, b'a\\xff\\x00\\xfe\\nb\\n')\n")
    out = subprocess.run([TFRUN, "run", "p.py"], cwd=tmp_path, capture_output=True, timeout=60)
    assert out.returncode == 0
    assert out.stdout == b"[0] a\xff\x00\xfe\n[0] b\n"


def test_a_flood_of_lines_arrives_whole(tmp_path: Path) -> None:
    """E42: 200,000 lines from two workers at once, none torn, none lost."""
    (tmp_path / "p.py").write_text("for i in range(100_000): print(i, 'x' * 20)\n")
    out = subprocess.run([TFRUN, "run", "-n", "2", "p.py"], cwd=tmp_path, capture_output=True, timeout=90)
    lines = out.stdout.decode().splitlines()
    for worker in "01":
        mine = [line for line in lines if line.startswith(f"[{worker}] ")]
        assert mine == [f"[{worker}] {i} {'x' * 20}" for i in range(100_000)]
    assert len(lines) == 200_000


def test_a_line_of_100_megabytes_needs_little_memory(tmp_path: Path) -> None:
    """E42: the launcher stays under 80 MB while a program writes 100 MB without a newline."""
    (tmp_path / "p.py").write_text("import os\nfor _ in range(100): os.write(1, b'x' * 1_000_000)\n")
    script = (
        "import pathlib, re, sys; from orchestrator import cli\n"
        "sys.argv = ['tfrun', 'run', 'p.py']\n"
        "try: cli.main()\n"
        "finally: print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1], file=sys.stderr)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, timeout=90)
    assert len(out.stdout.replace(b"\n", b"").replace(b"[0] ", b"")) == 100_000_000
    assert int(out.stderr.split()[-1]) < 80_000


def test_a_slow_reader_holds_up_no_worker(start: Start, tmp_path: Path) -> None:
    """E42: nobody reads the launcher's output, and the program finishes all the same."""
    (tmp_path / "p.py").write_text("for i in range(100_000): print(i)\nopen('finished', 'w').close()\n")
    run = start("p.py")
    deadline = 60.0
    while not (tmp_path / "finished").exists():
        deadline -= 0.05
        assert deadline > 0, "the program waits for a reader"
        signal.sigtimedwait([], 0.05)  # the only sign is a file
    assert run.wait() == 0
    assert len(run.lines) == 100_000


def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    """`tfrun run … | head -1`: the training goes on, and the logs have it all."""
    (tmp_path / "p.py").write_text("import time\nfor i in range(50): print(i, flush=True); time.sleep(0.01)\n")
    piped = subprocess.run(
        f"{TFRUN} run p.py | head -1", shell=True, executable="/bin/bash", cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert piped.stdout == "[0] 0\n"
    assert "tfrun: done" in piped.stderr
    log = tmp_path / ".tfrun" / "latest" / "worker-0" / "attempt-0.log"
    assert log.read_text().splitlines()[-1] == "49"


def read_terminal(arguments: list[str], cwd: Path) -> str:
    """Everything that a command shows on a terminal of 80 columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execv(TFRUN, [str(TFRUN), *arguments])  # the child side of pty.fork
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is gone
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown.decode(errors="replace")


def test_a_terminal_gets_colours_and_a_progress_line(program: Callable[[str], Path], tmp_path: Path) -> None:
    """On a terminal: a coloured prefix, and steps, speed, loss and time left on one line that is erased at the end."""
    shown = read_terminal(["run", "-n", "2", str(program("steps")), "40", "0.1"], tmp_path)
    assert "\x1b[36m[0] \x1b[0mbegin 0 0" in shown
    assert "\x1b[32m[1] \x1b[0mbegin 1 0" in shown
    assert "/40 · " in shown
    assert " steps/s · loss " in shown
    assert " left" in shown
    assert shown.replace("\r\n", "\n").split("\n")[-2].strip().startswith("logs: ")


def test_a_pipe_gets_plain_text(finish: Finish, program: Callable[[str], Path]) -> None:
    """Piped output has neither colours nor a progress line."""
    run = finish(program("steps"), "12", "0.1")
    assert run.lines == ["[0] begin 0 0", "[0] stepping 0 0", "[0] end 0 0"]
    assert "\x1b" not in run.report()
