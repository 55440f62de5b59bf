"""The training program and the examples in processes of their own: two workers, TF_CONFIG, and nothing else of tfrun."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import checkpoint_files, protocol, train  # noqa: E402 # the import above may skip this file

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]  # ten imports of TensorFlow, on a machine that may be busy

ROOT = Path(__file__).parents[2]
TRAIN = ["-m", "worker_image.train"]
Processes = list["subprocess.Popen[str]"]


@pytest.fixture
def processes() -> Iterator[Processes]:
    """What a test starts and puts in here is gone when the test is."""
    started: Processes = []
    yield started
    _kill(started)


def start(processes: Processes, *commands: Sequence[object], alone: bool = False) -> Processes:
    """Start one worker of a group for each command line, or each alone; they replace those of before."""
    addresses = _free_addresses(len(commands))
    processes[:] = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=_environment(**({} if alone else {"TF_CONFIG": _tf_config(addresses, index)})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, command in enumerate(commands)
    ]
    return processes


def ended(processes: Processes) -> list[tuple[int, str]]:
    """Exit code and remaining output of each."""
    outputs = [process.communicate()[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def kill_when_told(processes: Processes, victim: int, line_start: str) -> None:
    """SIGKILL one worker when the first one has printed such a line, then the others, as their agents would."""
    chief = processes[0].stdout
    assert chief is not None
    assert any(line.startswith(line_start) for line in chief), f"the first worker ended without a line {line_start!r}"
    processes[victim].kill()
    _kill(processes)


def _kill(processes: Processes) -> None:
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def _tf_config(addresses: list[str], index: int) -> str:
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def _environment(**added: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFRUN_", "TF_CONFIG"))}
    return {**kept, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **added}


def _values(folder: Path) -> dict[str, Any]:
    newest = checkpoint_files.complete_steps(str(folder))[0]
    reader = tf.train.load_checkpoint(str(Path(checkpoint_files.folder_of(str(folder), newest), "weights")))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: reader.get_tensor(name) for name in names}


def test_two_workers_that_were_killed_end_where_one_would(processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits with the default options: two workers, killed and resumed in mid-epoch, learn what one with the whole batch learns."""
    command = [*TRAIN, "--task", "digits", "--checkpoint-dir", tmp_path / "two", "--checkpoint-steps", 9]
    start(processes, command, command)
    kill_when_told(processes, 1, "epoch 2/")
    (first, said), (second, silent) = ended(start(processes, command, command))
    assert (first, second) == (0, 0), said + silent
    assert re.search(r"resuming after step (36|4[5-9]|5\d|6\d)\b", said), said
    told = re.search(r"test accuracy (\d\.\d{3}) after 230 steps \(2 workers\)$", said.strip())
    assert told, said
    assert float(told[1]) >= 0.95
    assert "accuracy" not in silent
    assert [path.name for path in (tmp_path / "two").glob(".worker-*")] == []

    with pytest.raises(SystemExit):
        train.main(["--task", "digits", "--checkpoint-dir", str(tmp_path / "one"), "--batch-size", "64"])
    assert told[0].split(" after")[0] in capsys.readouterr().out
    one, two = _values(tmp_path / "one"), _values(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-4, err_msg=name)


def test_workers_that_see_different_checkpoints_fail(processes: Processes, tmp_path: Path) -> None:
    """A directory that is not shared is told on both workers, instead of training from different steps."""
    folder = tmp_path / "0" / "step-00000044"
    folder.mkdir(parents=True)
    (folder / "weights.index").write_bytes(b"")
    checkpoint_files.complete(str(folder), {"step": 44})
    results = ended(start(processes, *([*TRAIN, "--task", "digits", "--checkpoint-dir", tmp_path / str(i)] for i in range(2))))
    for code, said in results:
        assert code == 1
        assert "train: one worker sees checkpoint 44 in " in said
        assert "Traceback" not in said


def test_workers_with_different_options_fail(processes: Processes) -> None:
    """Workers that would make different numbers of steps are told so, instead of waiting for each other."""
    results = ended(start(processes, *([*TRAIN, "--task", "digits", "--batch-size", size] for size in (32, 16))))
    for code, said in results:
        assert code == 1
        assert "train: the workers differ in global batch: [64, 32]" in said


def test_a_counter_loses_no_step_and_repeats_none(processes: Processes, tmp_path: Path) -> None:
    """examples/counter.py, its first worker killed, ends at replicas times steps."""
    command = [ROOT / "examples" / "counter.py", "--steps", 150, "--every", 5, "--checkpoint-dir", tmp_path]
    start(processes, command, command)
    kill_when_told(processes, 0, "checkpoint at step 60")
    for code, said in ended(start(processes, command, command)):
        assert code == 0, said
        assert re.search(r"starting after step (6|7|8|9|1\d)\d$", said, re.MULTILINE), said
        assert said.endswith("counter 300 = replicas 2 × steps 150\n")


UNDER_AN_AGENT = """
import socket, sys
from worker_image.link import Link
Link(socket.socket(fileno=int(sys.argv[1]))).start()
from worker_image import train
train.main(sys.argv[2:])
"""


def test_a_worker_saves_and_leaves_when_asked(processes: Processes, tmp_path: Path) -> None:
    """The coordinated save: the checkpoint that is told to be saved is complete, and the exit code says that it left."""
    ours, theirs = socket.socketpair()
    arguments = ["--task", "digits", "--steps-per-call", "2", "--checkpoint-dir", str(tmp_path)]
    with theirs:
        command = [sys.executable, "-c", UNDER_AN_AGENT, str(theirs.fileno()), *arguments]
        child = subprocess.Popen(command, env=_environment(), pass_fds=[theirs.fileno()], start_new_session=True, text=True)
    processes.append(child)
    with ours, ours.makefile("rb") as said:
        ours.sendall(protocol.encode(protocol.AskSave()))
        heard = []
        for line in said:
            heard.append(protocol.decode(line))
            if isinstance(heard[-1], protocol.SaveTarget):
                ours.sendall(protocol.encode(protocol.SaveGo(ok=True)))
        saved = [message.step for message in heard if isinstance(message, protocol.Saved)]
        assert child.wait() == protocol.LEFT_AFTER_SAVE
    assert saved == checkpoint_files.complete_steps(str(tmp_path)) == [6]
