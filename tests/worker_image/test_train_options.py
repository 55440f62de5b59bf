"""What changes how a step is computed must not change what is learned, on one worker, on several devices, and on several workers."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.worker_image.test_train import run, values  # noqa: E402 # the import above may skip this file
from tests.worker_image.test_train_workers import TRAIN, Processes, ended, processes, start  # noqa: E402
from worker_image import loops  # noqa: E402

__all__ = ["processes"]  # the fixture

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

TASK = """
import os
import tensorflow as tf

def build_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(3, dtype="float32")])
    clip = float(os.environ.get("KERAS_CLIP", "0")) or None
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.5, momentum=0.5, global_clipnorm=clip), loss=loss, metrics=["accuracy"])
    return model

def build_dataset(split):
    x = tf.random.stateless_normal([50, 4], [1, 2])
    y = tf.cast(tf.argmax(x[:, :3], axis=1), tf.int32)
    if os.environ.get("BAD_LABEL") and split == "train":
        y = tf.where(tf.range(50) == 20, 7, y)
    if os.environ.get("BAD_NUMBER") and split == "train":
        x = tf.where(tf.range(50)[:, tf.newaxis] == 20, float("nan"), x)
    return tf.data.Dataset.from_tensor_slices((x, y))
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return str(path)


@pytest.fixture(autouse=True)
def _policy() -> Iterator[None]:
    """Keras's policy is the process's: the next test must find the usual one."""
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def learned(task: str, folder: Path, *options: object) -> dict[str, Any]:
    assert run("--task", task, "--epochs", 2, "--checkpoint-dir", folder, *options) == 0
    return weights(folder)


def weights(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in values(folder).items() if "layer" in name or "_trainable_variables" in name}


def assert_same(left: dict[str, Any], right: dict[str, Any], rtol: float = 1e-4) -> None:
    assert len(left) >= 4
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=rtol, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", [["--accumulate", 3], ["--accumulate", 64], ["--loop", "fit", "--accumulate", 3]])
def test_a_batch_in_parts_teaches_the_same(options: list[object], task: str, tmp_path: Path) -> None:
    """Also with more parts than examples, and with the epoch's last, smaller batch."""
    whole = learned(task, tmp_path / "whole", "--batch-size", 16)
    assert_same(whole, learned(task, tmp_path / "parts", "--batch-size", 16, *options))


def test_clipping_is_keras_own_on_one_worker(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are clipped by their norm together."""
    ours = learned(task, tmp_path / "ours", "--clip-norm", 0.05)
    free = learned(task, tmp_path / "free")
    monkeypatch.setenv("KERAS_CLIP", "0.05")
    assert_same(ours, learned(task, tmp_path / "keras"))
    assert not np.allclose(*(next(iter(each.values())) for each in (ours, free)))


def test_a_compiled_step_teaches_the_same(task: str, tmp_path: Path) -> None:
    """XLA needs whole batches, so the last one is left out."""
    plain = learned(task, tmp_path / "plain", "--batch-size", 16, "--drop-remainder")
    assert_same(plain, learned(task, tmp_path / "compiled", "--batch-size", 16, "--jit-compile"), rtol=1e-3)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("options", [[], ["--clip-norm", 1.0, "--accumulate", 2]])
def test_half_the_bits_learn_nearly_the_same(precision: str, options: list[object], task: str, tmp_path: Path) -> None:
    """The variables keep their 32 bits, and the loss of 16-bit floats is scaled."""
    full = learned(task, tmp_path / "full", *options)
    half = learned(task, tmp_path / "half", "--precision", precision, *options)
    kept = [name for name in full if name in half]
    assert kept
    for name in kept:
        assert half[name].dtype == full[name].dtype
        np.testing.assert_allclose(half[name], full[name], atol=0.05, err_msg=name)


def test_pauses_between_calls_change_nothing(task: str, tmp_path: Path) -> None:
    """However many steps a call makes, and whichever loop makes them."""
    found = [
        learned(task, tmp_path / f"{loop}{steps}", "--batch-size", 7, "--loop", loop, "--steps-per-call", steps)
        for loop, steps in itertools.product(("custom", "fit"), (1, 4))
    ]
    for other in found[1:]:
        assert_same(found[0], other)


def test_two_devices_learn_what_one_does(task: str, tmp_path: Path, processes: Processes) -> None:
    """MirroredStrategy on two logical devices, with uneven last batches, parts and clipping, in both loops."""
    same = ["--task", task, "--epochs", 2, "--clip-norm", 0.3]
    commands = [
        [*TRAIN, *same, "--batch-size", 8, "--logical-devices", 2, "--accumulate", 2, "--loop", loop, "--checkpoint-dir", tmp_path / loop]
        for loop in ("custom", "fit")
    ]
    results = ended(start(processes, *commands, alone=True))
    one = learned(task, tmp_path / "one", "--batch-size", 16, "--clip-norm", 0.3)
    for loop, (code, said) in zip(("custom", "fit"), results, strict=True):
        assert code == 0, said
        assert "strategy: mirrored, because it was asked for" in said
        assert "devices: 2 replicas on 1 worker, each on a CPU" in said
        assert_same(one, weights(tmp_path / loop))


@pytest.mark.parametrize("options", [["--loop", "custom"], ["--loop", "fit"], ["--accumulate", 2, "--clip-norm", 0.3]])
def test_two_workers_learn_what_one_does(options: list[object], task: str, tmp_path: Path, processes: Processes) -> None:
    """MultiWorkerMirroredStrategy with uneven last batches; what differs by order of adding is all that differs."""
    clip = options[2:] if "--clip-norm" in options else []
    command = [*COMPATIBLE, *TRAIN[1:], "--task", task, "--epochs", 2, "--batch-size", 8, "--checkpoint-dir", tmp_path / "two", *options]
    results = ended(start(processes, command, command))
    assert [code for code, _ in results] == [0, 0], results
    assert_same(learned(task, tmp_path / "one", "--batch-size", 16, *clip), weights(tmp_path / "two"))


# As launch does before it runs a program: Keras 3's fit fails with several workers without it.
FIXED = """
import runpy, sys, tensorflow
from worker_image import keras_compat
keras_compat.install(print)
sys.argv[1:2] = []
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
COMPATIBLE = ["-c", FIXED, "-m"]


def test_a_loss_that_is_no_number_is_some_workers(task: str, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers end with the step, and with the worker whose examples did it."""
    monkeypatch.setenv("BAD_NUMBER", "1")
    command = [*TRAIN, "--task", task, "--epochs", 2, "--batch-size", 5]
    for code, said in ended(start(processes, command, command)):
        assert code == 1
        assert "train: the loss of worker" in said, said
        assert " is nan at step " in said


def test_a_label_out_of_range_is_one_sentence(task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """TensorFlow's page about it is left out."""
    monkeypatch.setenv("BAD_LABEL", "1")
    assert run("--task", task) == 1
    assert "train: build_dataset gives the label 7 which is outside the valid range of [0, 3)" in capsys.readouterr().err


def test_two_workers_go_on_where_one_was(task: str, tmp_path: Path, processes: Processes) -> None:
    """The number of workers may change in mid-epoch: the rest of the epoch's examples are shared out anew, and none is lost."""
    common = ["--task", task, "--batch-size", 4, "--checkpoint-dir", tmp_path]
    assert run(*common, "--epochs", 1, "--checkpoint-steps", 5) == 0
    for step in (10, 13):
        (tmp_path / f"step-{step:08d}" / "complete.json").unlink()
    command = [*TRAIN, *common, "--epochs", 1]
    (first, said), (second, _) = ended(start(processes, command, command))
    assert (first, second) == (0, 0), said
    assert "resuming after step 5: 1 epoch of 7 steps" in said
    assert "after 9 steps (2 workers)" in said  # 30 examples were left for 8 a step


def test_the_first_number_that_is_none_is_found(task: str, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operation that it came out of; a run without one is not disturbed."""
    command = [*TRAIN, "--task", task, "--epochs", 2, "--check-numerics"]
    ((code, said),) = ended(start(processes, command, alone=True))
    assert code == 0, said
    monkeypatch.setenv("BAD_NUMBER", "1")
    ((code, said),) = ended(start(processes, command, alone=True))
    assert code == 1
    assert "train: the first " in said, said
    assert " came out of the operation " in said


RECORDING = """
import os, time
import tensorflow as tf

TRACES = []

class Counting(tf.keras.Sequential):
    def call(self, *arguments, **named):
        TRACES.append(tf.executing_eagerly())
        return super().call(*arguments, **named)

def build_model():
    layers = tf.keras.layers
    model = Counting([tf.keras.Input((1,)), layers.Dense(1)])
    model.compile(optimizer="sgd", loss=loss)
    return model

def build_dataset(split):
    number = tf.range(43 if split == "train" else 9)
    x = tf.cast(number, tf.float32)[:, tf.newaxis] / 100
    return tf.data.Dataset.from_tensor_slices((x, number))

def loss(y, predicted):
    with tf.control_dependencies([tf.py_function(record, [y], [])]):
        return tf.reduce_mean(tf.abs(predicted), axis=1)

def record(numbers):
    with open(os.environ["RECORD"] + "-" + str(os.getpid()), "a") as f:
        f.write(" ".join(map(str, numbers.numpy().ravel())) + "\\n")
    if os.environ.get("DIE_AT"):
        time.sleep(0.1)  # the checkpoint before is written meanwhile
    if os.environ.get("DIE_AT") and len(open(f.name).readlines()) > int(os.environ["DIE_AT"]):
        os.kill(os.getpid(), 9)

def on_end(model, metrics):
    print("traced", sum(not eager for eager in TRACES), flush=True)
"""


def recorded(prefix: Path, steps: slice) -> list[int]:
    """What each process was given in these of its steps; the first line of each is the try before the training."""
    lines = [file.read_text().splitlines()[1:][steps] for file in sorted(prefix.parent.glob(prefix.name + "-*"))]
    return [int(float(number)) for each in lines for line in each for number in line.split()]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_epoch_sees_each_example_once(
    workers: int, tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded list of the samples: those before the checkpoint and those after it are the epoch, in which a worker was killed."""
    task = tmp_path / "task.py"
    task.write_text(RECORDING)
    command = [*TRAIN, "--task", task, "--epochs", 1, "--batch-size", 4, "--steps-per-call", 1, "--checkpoint-dir", tmp_path / "c"]
    commands = [[*command, "--checkpoint-steps", 2]] * workers
    monkeypatch.setenv("RECORD", str(tmp_path / "before"))
    monkeypatch.setenv("DIE_AT", "5")
    assert [code for code, _ in ended(start(processes, *commands))] == [-signal.SIGKILL] * workers
    monkeypatch.delenv("DIE_AT")
    monkeypatch.setenv("RECORD", str(tmp_path / "after"))
    results = ended(start(processes, *commands))
    assert [code for code, _ in results] == [0] * workers, results
    resumed = re.search(r"resuming after step (\d+):", results[0][1])
    assert resumed, results[0][1]
    before, every = int(resumed[1]), -(-43 // (4 * workers))
    found = recorded(tmp_path / "before", slice(0, before)) + recorded(tmp_path / "after", slice(0, every - before))
    assert sorted(found) == list(range(43))


def test_the_model_is_traced_once_to_train_and_once_to_evaluate(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to train, once to evaluate: neither an epoch's smaller step nor the test set's remainder costs a graph of its own."""
    task = tmp_path / "task.py"
    task.write_text(RECORDING)
    monkeypatch.setenv("RECORD", str(tmp_path / "seen"))
    ((code, said),) = ended(start(processes, [*TRAIN, "--task", task, "--epochs", 3, "--batch-size", 4], alone=True))
    assert code == 0, said
    assert "traced 2" in said


def test_slow_input_is_told_with_its_share(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where examples take longer to come than to be computed; and not where they don't."""
    monkeypatch.setattr(loops, "ENOUGH", 0.2)
    assert run("--task", task, "--epochs", 4, "--batch-size", 10, "--steps-per-call", 5) == 0
    assert "input: " not in capsys.readouterr().out
    slow = "from_tensor_slices((x, y)).map(lambda x, y: (tf.py_function(wait, [x], tf.float32), y))"
    text = TASK.replace("from_tensor_slices((x, y))", slow) + "\ndef wait(x):\n    import time\n    time.sleep(0.01)\n    return x\n"
    other = tmp_path / "slow.py"
    other.write_text(text.replace("tf.float32), y))", "tf.float32), y)).map(lambda x, y: (tf.ensure_shape(x, [4]), y))"))
    assert run("--task", other, "--epochs", 4, "--batch-size", 10, "--cache", "no", "--steps-per-call", 5) == 0
    told = re.search(r"input: (\d+)% of the time went into waiting for examples and (\d+)% into computing", capsys.readouterr().out)
    assert told
    assert int(told[1]) > 50
    assert int(told[1]) + int(told[2]) in (99, 100, 101)


def test_a_deterministic_run_is_the_same_bit_for_bit(task: str, tmp_path: Path, processes: Processes) -> None:
    """In processes of their own: the switch can't be turned back."""
    commands = [[*TRAIN, "--task", task, "--deterministic", "--checkpoint-dir", tmp_path / name] for name in "ab"]
    for code, said in ended(start(processes, *commands, alone=True)):
        assert code == 0, said
    left, right = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_the_block_at_the_start_says_what_is_trained_on(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Strategy, devices, data and options, each with its reason, in one place."""
    assert run("--task", task, "--accumulate", 2, "--clip-norm", 1.5, "--precision", "mixed_bfloat16") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:7] == [
        "strategy: default, because one worker, and at most one GPU",
        "devices: 1 replica on 1 worker, each on a CPU; threads: all intra-op, all inter-op",
        "data: 50 examples to train with; one worker reads all of it",
        "precision: mixed_bfloat16",
        "gradients in: 2 parts",
        "gradients clipped at: 1.5",
        "starting: 10 epochs of 2 steps, 32 examples each (1 replica of 32), 18 in an epoch's last",
    ]
