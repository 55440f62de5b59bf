"""`tfrun run` with real TensorFlow: the main job, its recovery, and other people's programs."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPO, Run, Start, oldest_python

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

Finish = Callable[..., Run]
EXAMPLES = REPO / "examples"


def accuracy(run: Run) -> float:
    found = re.search(r"test accuracy (\d\.\d+) after 230 steps \(2 workers\)", "\n".join(run.lines))
    assert found, run.report()
    return float(found[1])


@pytest.mark.parametrize("loop", ["custom", "fit"])
def test_the_main_job_learns(finish: Finish, loop: str) -> None:
    """Two workers, real handwritten digits, test accuracy of at least 0.95, with both loops."""
    run = finish("-n", "2", "builtin:digits", "--loop", loop)
    assert run.process.returncode == 0, run.report()
    assert accuracy(run) >= 0.95
    assert "strategy: multi_worker_mirrored, because TF_CONFIG names 2 workers" in run.log(0, 0)


def test_the_main_job_goes_on_where_it_was(start: Start) -> None:
    """SIGKILL in the middle: the next attempt resumes from the last checkpoint and learns as much."""
    run = start("-n", "2", "builtin:digits")
    run.until("epoch 5/10")
    run.child(1).send_signal(signal.SIGKILL)
    run.until("resuming after step")
    assert run.wait() == 0, run.report()
    assert accuracy(run) >= 0.95
    assert run.result()["attempts"] == 2


def test_a_task_is_trained_as_its_job_file_says(finish: Finish, tmp_path: Path) -> None:
    """The user's part is a module in `code`; what comes of it is where the job file says, seen from where tfrun was started."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "own.py").write_text((EXAMPLES / "my_task.py").read_text())
    (tmp_path / "job.yaml").write_text(
        "task: own.py\ncode: src\nworkers: 2\n"
        "train: {epochs: 2, batch_size: 50, tensorboard: tb, profile: {steps: [5, 9]}, export: out/model}\n"
        "checkpoints: {directory: ckpt, steps: 30, keep: 2}\n"
    )
    run = finish("job.yaml")
    assert run.process.returncode == 0, run.report()
    assert run.folder.name.startswith("own-")
    made = {"tb/events.out.tfevents.*", "tb/plugins/profile/*/*.xplane.pb", "out/model/model.keras", "ckpt/*"}
    assert {pattern for pattern in made if next(tmp_path.glob(pattern), None)} == made, run.report()
    assert [path.name for path in (tmp_path / "src").iterdir() if path.name != "__pycache__"] == ["own.py"]


def test_the_first_worker_listens_before_the_others_ask(finish: Finish, tmp_path: Path) -> None:
    """Whoever finds no server at the first address waits for gRPC's second: worker 1 begins when worker 0's server is there."""
    (tmp_path / "p.py").write_text(
        "import json, os, socket, time\nimport tensorflow\n"
        "host, _, port = json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][0].rpartition(':')\n"
        "if os.environ['TFRUN_WORKER'] == '0':\n"
        "    server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    time.sleep(0.03); server.bind(('0.0.0.0', int(port))); server.listen(); time.sleep(2)\n"
        "else:\n    socket.create_connection((host, int(port))); print('reached')\n"
    )
    run = finish("-n", "2", "p.py")
    assert "[1] reached" in run.lines, run.report()


def test_sigterm_to_a_worker_loses_no_step(start: Start) -> None:
    """E39: all save at the same step, and the next attempt begins with that step."""
    run = start("-n", "2", EXAMPLES / "counter.py", "--steps", "600", "--every", "100", "--pause", "0.02")
    run.until("checkpoint at step 100")
    run.agent(1).send_signal(signal.SIGTERM)
    resumed = run.until("starting after step", times=2)
    steps = {int(line.rpartition(" ")[2]) for line in resumed}
    assert len(steps) == 1
    assert steps.pop() % 100 != 0, "resumed from an ordinary checkpoint"
    assert run.wait() == 0, run.report()
    assert "counter 1200 = replicas 2" in "\n".join(run.lines)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_or_done_twice(start: Start, tmp_path: Path, seed: int) -> None:
    """E43: under random SIGKILL and SIGTERM of programs and agents the counter ends at replicas times steps exactly."""
    dice = random.Random(seed)
    (tmp_path / "job.yaml").write_text(
        f"program: {EXAMPLES / 'counter.py'}\nworkers: 2\nrestarts: {{max: 100}}\n"
        f"args: [--steps, '400', --every, '5', --pause, '0.02', --checkpoint-dir, {tmp_path / 'c'}]\n"
    )
    run = start("job.yaml")
    for _ in range(5):
        run.until("checkpoint at step", times=dice.randint(1, 6))
        worker, how = dice.randrange(2), dice.choice([signal.SIGKILL, signal.SIGTERM])
        victim = dice.choice([run.child, run.agent])(worker)
        victim.send_signal(how)
    assert run.wait() == 0, run.report()
    ends = [line[4:] for line in run.lines if line[4:].startswith("counter ")]
    assert [end.split()[1:5] for end in ends] == [["800", "=", "replicas", "2"]] * 2


def test_the_next_attempt_runs_in_the_standby(start: Start) -> None:
    """A process that was imported already takes over: its pid is older than the failure."""
    run = start("-n", "2", EXAMPLES / "counter.py", "--steps", "5000", "--pause", "0.02")
    run.until("checkpoint at step")
    standbys = [run.standby(worker) for worker in range(2)]
    run.child(0).send_signal(signal.SIGKILL)
    run.until("starting after step", times=2)
    assert [run.child(worker) for worker in range(2)] == standbys
    run.until("checkpoint at step")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert re.search(r"every worker saved at step \d+", run.errors())


def test_no_standby_keeps_none(start: Start) -> None:
    """--no-standby: one process beside each agent, and recovery all the same."""
    run = start("--no-standby", "-n", "2", EXAMPLES / "counter.py", "--steps", "100", "--pause", "0.02", "--every", "20")
    run.until("checkpoint at step")
    assert [len(run.agent(worker).children()) for worker in range(2)] == [1, 1]
    run.child(0).send_signal(signal.SIGKILL)
    assert run.wait() == 0, run.report()
    assert run.result()["attempts"] == 2


def test_an_ordinary_keras_script_runs_as_it_is(finish: Finish) -> None:
    """Keras 3's compile, fit and evaluate under MultiWorkerMirroredStrategy, with one line that says what was done for it."""
    run = finish("-n", "2", EXAMPLES / "keras_fit.py")
    assert run.process.returncode == 0, run.report()
    assert len({line[4:] for line in run.lines if "test accuracy" in line}) == 1
    assert run.errors().count("tfrun's fix is applied, --no-compat turns it off") == 1


def test_without_the_fix_keras_still_fails(finish: Finish) -> None:
    """When this test fails, Keras has been mended upstream and worker_image/keras_compat.py can go."""
    run = finish("--no-compat", "-n", "2", EXAMPLES / "keras_fit.py")
    assert run.process.returncode == 1
    assert "raised ValueError" in run.errors()
    assert "PerReplica" in run.errors()


def test_tf_keras_runs_as_it_is(finish: Finish, tmp_path: Path) -> None:
    """A script that asks for Keras 2 before it imports TensorFlow gets it, though TensorFlow is imported early; no fix is applied."""
    script = (EXAMPLES / "keras_fit.py").read_text().replace("import keras\n", "").replace("keras.", "tf.keras.")
    (tmp_path / "legacy.py").write_text(
        f"import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n{script}\nimport tf_keras\n"
        "print('made by', [c.__module__ for c in type(model).__mro__ if c.__name__ == 'Model'])\n"
    )
    run = finish("-n", "2", "legacy.py")
    assert run.process.returncode == 0, run.report()
    assert "made by ['tf_keras.src.engine.training']" in "\n".join(run.lines), run.report()
    assert "fix is applied" not in run.errors()


def test_the_users_own_task_runs_with_the_shared_entrypoint(finish: Finish) -> None:
    """A module with build_model and build_dataset is enough."""
    run = finish("-n", "2", "-m", "worker_image.train", "--task", EXAMPLES / "my_task.py", "--epochs", "2")
    assert run.process.returncode == 0, run.report()
    assert any("(2 workers)" in line for line in run.lines), run.report()


def test_one_worker_alone_works(finish: Finish) -> None:
    """Without -n there is one worker, with a cluster of one."""
    run = finish(EXAMPLES / "counter.py", "--steps", "20")
    assert "[0] counter 20 = replicas 1" in "\n".join(run.lines), run.report()


def test_the_garbage_collector_is_as_a_program_expects(finish: Finish, tmp_path: Path) -> None:
    """It is off while TensorFlow is imported, on again when the program begins, and leaves TensorFlow's own objects alone."""
    program = tmp_path / "collector.py"
    program.write_text("import gc\nimport tensorflow\nprint('collector', gc.isenabled(), gc.get_freeze_count() > 100_000)\n")
    run = finish(program)
    assert run.process.returncode == 0, run.report()
    assert "collector True True" in "\n".join(run.lines), run.report()


def test_uneven_steps_are_explained(finish: Finish, tmp_path: Path) -> None:
    """A worker that ends early leaves the others with a lost peer; the user is told that, not only UnavailableError."""
    (tmp_path / "p.py").write_text(
        "import os\nimport tensorflow as tf\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "step = tf.function(lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce('SUM', tf.constant(1.0))))\n"
        "for i in range(3 if os.environ['TFRUN_WORKER'] == '0' else 10): step()\n"
    )
    (tmp_path / "job.yaml").write_text("program: p.py\nworkers: 2\nrestarts: {max: 0}\n")
    run = finish("job.yaml")
    assert run.process.returncode == 1, run.report()
    assert "worker 0 had ended with 0 before, and every worker must make the same number of steps" in run.errors()


def test_tensorflows_server_listens_everywhere_unless_the_network_is_private(start: Start, tmp_path: Path) -> None:
    """The claim behind our warning: TensorFlow binds every interface whatever TF_CONFIG says. In a private network that is a loopback."""
    arguments = ("-n", "2", EXAMPLES / "counter.py", "--steps", "100000", "--pause", "0.02")
    run = start(*arguments)
    run.until("checkpoint at step")
    ports = [c.laddr for p in (run.child(0), run.child(1)) for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert len(ports) == 2
    assert {p.ip for p in ports} <= {"::", "0.0.0.0"}
    run.process.send_signal(signal.SIGINT)
    run.wait()
    private = start("--private-network", *arguments)
    private.until("checkpoint at step")
    seen = Path(f"/proc/{private.child(0).pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in seen] == ["lo"]
    private.process.send_signal(signal.SIGINT)
    private.wait()


OLDEST = [
    ["builtin:digits"],
    ["builtin:digits", "--loop", "fit"],
    ["builtin:digits", "--accumulate", "2", "--clip-norm", "5"],
    [EXAMPLES / "keras_fit.py"],
]


@pytest.mark.parametrize("arguments", OLDEST)
def test_the_oldest_tensorflow_on_the_oldest_python(finish: Finish, arguments: list[object]) -> None:
    """TensorFlow 2.15 with Keras 2 on Python 3.9, in another environment than tfrun's own: nothing of ours is installed there."""
    run = finish("--python", oldest_python(), "-n", "2", *arguments)
    assert run.process.returncode == 0, run.report()
    assert "test accuracy 0.9" in "\n".join(run.lines)
    assert "fix is applied" not in run.errors()


def test_the_oldest_tensorflow_recovers(start: Start) -> None:
    """The agent and the standby do their work on Python 3.9 too."""
    run = start("--python", oldest_python(), "-n", "2", EXAMPLES / "counter.py", "--steps", "300", "--pause", "0.02")
    run.until("checkpoint at step")
    standby = run.standby(1)
    run.child(0).send_signal(signal.SIGKILL)
    run.until("starting after step", times=2)
    assert run.child(1) == standby
    run.until("checkpoint at step")
    run.agent(1).send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.report()
    assert "counter 600 = replicas 2" in "\n".join(run.lines)
