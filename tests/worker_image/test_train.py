"""The training program in this very process, with one worker: real TensorFlow, real files."""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import checkpoint_files, train  # noqa: E402 # the import above may skip this file

TASK = """
import os
import tensorflow as tf

def build_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dropout(0.2), layers.Dense(1)])
    rate = float(os.environ.get("RATE", "0.01"))
    optimizer = tf.keras.optimizers.Adam(rate) if rate < 1 else tf.keras.optimizers.SGD(rate)
    model.compile(optimizer=optimizer, loss=loss)
    return model

def build_dataset(split):
    count = 100 if split == "train" else 37
    x = tf.random.stateless_normal([count, 4], [1, count])
    y = tf.stack([tf.reduce_sum(x ** 2, axis=1), tf.range(count, dtype=tf.float32)], axis=1)
    return tf.data.Dataset.from_tensor_slices((x, y))

def loss(y, predicted):
    with tf.control_dependencies([tf.py_function(fail_on_purpose, [y[:, 1]], [])]):
        return tf.reduce_mean((y[:, :1] - predicted) ** 2, axis=1)

def fail_on_purpose(numbers):
    if float(os.environ.get("BAD_EXAMPLE", "-1")) in numbers.numpy():
        raise OSError("this example is bad")
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return str(path)


def run(*arguments: object) -> int:
    """The exit code of the training program."""
    with pytest.raises(SystemExit) as ended:
        train.main([str(argument) for argument in arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def values(folder: Path) -> dict[str, Any]:
    """All that the newest checkpoint in a folder holds."""
    newest = checkpoint_files.complete_steps(str(folder))[0]
    reader = tf.train.load_checkpoint(str(Path(checkpoint_files.folder_of(str(folder), newest), "weights")))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}


def same(a: Path, b: Path) -> bool:
    left, right = values(a), values(b)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_digits_are_learned_with_the_default_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The built-in task comes to 0.95 on the digits that it was not trained with, and says so in its last line."""
    assert run("--task", "digits") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    told = re.fullmatch(r"test accuracy (\d\.\d{3}) after 450 steps \(1 worker\)", last)
    assert told, last
    assert float(told[1]) >= 0.95


def test_both_loops_train_the_same(task: str, tmp_path: Path) -> None:
    """Keras's fit and our own loop end with the same weights."""
    for loop in ("fit", "custom"):
        assert run("--task", task, "--loop", loop, "--epochs", 2, "--checkpoint-dir", tmp_path / loop) == 0
    fit, custom = values(tmp_path / "fit"), values(tmp_path / "custom")
    assert len(custom) > 10
    for name in custom:
        np.testing.assert_allclose(fit[name], custom[name], rtol=1e-5)


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_an_interrupted_training_ends_as_if_it_had_not_been(
    loop: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed in the middle of an epoch, a run ends with the same weights, optimizer and dropout, bit for bit."""
    common = ["--task", task, "--loop", loop, "--batch-size", 10, "--epochs", 3, "--checkpoint-steps", 4, "--steps-per-call", 3]
    assert run(*common, "--checkpoint-dir", tmp_path / "whole") == 0
    monkeypatch.setenv("BAD_EXAMPLE", "17")
    with pytest.raises(tf.errors.OpError):
        train.main([*map(str, common), "--checkpoint-dir", str(tmp_path / "cut")])
    monkeypatch.delenv("BAD_EXAMPLE")
    capsys.readouterr()
    assert run(*common, "--checkpoint-dir", tmp_path / "cut") == 0
    assert "resuming after step 8:" in capsys.readouterr().out
    assert same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_training_is_evaluated_again_and_not_repeated(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that was lost in the evaluation comes back to it, without a step more."""
    for start in ("starting", "resuming after step 4"):
        assert run("--task", task, "--epochs", 1, "--checkpoint-dir", tmp_path / "c") == 0
        said = capsys.readouterr().out
        assert f"\n{start}: 1 epoch of 4 steps, 32 examples each (1 replica of 32), 4 in an epoch's last\n" in said
        assert "after 4 steps (1 worker)" in said


def test_a_damaged_checkpoint_is_passed_over(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When the newest checkpoint is not what was written, the one before is taken, and one line says so."""
    common = ["--task", task, "--checkpoint-dir", tmp_path / "c"]
    assert run(*common, "--epochs", 2) == 0
    damaged = tmp_path / "c" / "step-00000008" / "weights.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    capsys.readouterr()
    assert run(*common, "--epochs", 2) == 0
    said = capsys.readouterr().out
    assert re.search(r"checkpoint 8 is damaged \(.*Checksum does not match.*\), trying the one before", said), said
    assert "resuming after step 4:" in said
    assert checkpoint_files.damage(str(damaged.parent)) == ""  # written anew


def test_three_checkpoints_are_kept(task: str, tmp_path: Path) -> None:
    """Old checkpoints go, and so does one that was never finished."""
    (tmp_path / "step-00000001").mkdir()
    assert run("--task", task, "--epochs", 5, "--checkpoint-dir", tmp_path) == 0
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-00000012", "step-00000016", "step-00000020"]


def test_a_loss_that_is_no_number_ends_the_training(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN fails at once with the step's number, and no checkpoint of such weights is left to resume from."""
    monkeypatch.setenv("RATE", "1e30")
    assert run("--task", task, "--epochs", 50, "--batch-size", 20, "--checkpoint-dir", tmp_path) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(r"train: the loss is (nan|inf) at step [23]; lower the learning rate, .*\n", said), said
    assert checkpoint_files.complete_steps(str(tmp_path)) == []


def test_weights_that_are_no_numbers_are_not_saved(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step whose loss was still a number, but whose update was not, makes no checkpoint."""
    monkeypatch.setenv("RATE", "1e39")
    assert run("--task", task, "--checkpoint-steps", 1, "--checkpoint-dir", tmp_path) == 1
    assert re.search(r"(the weights are no longer finite after step 1|the loss is (nan|inf) at step 2)", capsys.readouterr().err)
    assert checkpoint_files.complete_steps(str(tmp_path)) == []


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_told(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed write ends the training with its cause, and leaves nothing that looks like a checkpoint."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        assert run("--task", task, "--epochs", 1, "--checkpoint-dir", tmp_path / "c") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert "train: the checkpoint of step 4 could not be written to" in said
    assert "File too large" in said
    assert list((tmp_path / "c").iterdir()) == []


def test_another_trainings_checkpoints_are_refused(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of another order of the examples or of another model are not taken for steps of this one."""
    assert run("--task", task, "--epochs", 1, "--checkpoint-dir", tmp_path) == 0
    assert run("--task", task, "--seed", 1, "--checkpoint-dir", tmp_path) == 2
    assert "were made with examples 100, seed 0, in memory 1, and this run has examples 100, seed 1" in capsys.readouterr().err
    Path(task).write_text(TASK.replace("Dense(8,", "Dense(9,"))
    assert run("--task", task, "--checkpoint-dir", tmp_path) == 2
    assert "are another model's" in capsys.readouterr().err


def test_the_evaluation_counts_every_example_once(task: str, tmp_path: Path) -> None:
    """The metrics over a test set that is no multiple of the batch are those that Keras tells."""
    from worker_image import evaluation, strategies, tasks

    loaded = tasks.load(task)
    model, keras = tasks.model_of(loaded)
    examples = loaded.build_dataset("test")
    ours = evaluation.Evaluation(strategies.Group(tf.distribute.get_strategy()), model, keras, examples, batch=10)
    for _ in range(2):
        assert ours.metrics()["loss"] == pytest.approx(model.evaluate(examples.batch(37), verbose=0), rel=1e-5)


MODEL_OUTSIDE = TASK.replace("def build_model():", "LAYER = tf.keras.layers.Dense(8)\nLAYER.build((None, 4))\n\ndef build_model():")
MODEL_OUTSIDE = MODEL_OUTSIDE.replace('layers.Dense(8, activation="tanh")', "LAYER")

BAD_TASKS = {
    "no file": (None, "is no Python file"),
    "a syntax error": ("def build_model(:", "the task can't be read"),
    "no build_model": ("build_dataset = print", "has no function build_model"),
    "no build_dataset": ("build_model = print", "has no function build_dataset"),
    "no model": (TASK.replace("    return model", "    return None"), "build_model() returned nothing, not a Keras model"),
    "not compiled": (TASK.replace("model.compile(", "dict("), "without an optimizer"),
    "no dataset": (TASK.replace("return tf.data.Dataset", "return [] and tf.data.Dataset"), "not a tf.data.Dataset"),
    "no pairs": (TASK.replace("from_tensor_slices((x, y))", "from_tensor_slices(x)"), "not pairs (x, y)"),
    "no end": (TASK.replace("from_tensor_slices((x, y))", "from_tensor_slices((x, y)).repeat()"), "leave out its repeat()"),
    "no examples": (TASK.replace("from_tensor_slices((x, y))", "from_tensor_slices((x, y)).take(0)"), "gives no examples"),
    "few examples": (TASK.replace("from_tensor_slices((x, y))", "from_tensor_slices((x, y)).take(31)"), "has 31 examples, fewer than"),
    "a shape that does not fit": (TASK.replace("tf.keras.Input((4,))", "tf.keras.Input((5,))"), "x of shape (4,) and y of shape (2,), and"),
    "a model from outside": (MODEL_OUTSIDE, "was made before"),
    "no scikit-learn": ("import sklearn.datasets", "pip install scikit-learn"),
}


# What must be whole can't be cut.
OPTIONS = {"few examples": ["--drop-remainder"], "a model from outside": ["--strategy", "mirrored", "--logical-devices", "1"]}


@pytest.mark.parametrize("case", list(BAD_TASKS))
def test_what_is_no_task_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's mistake in the task is one sentence and exit code 2."""
    text, sentence = BAD_TASKS[case]
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as if it were not installed
    assert run("--task", path, *OPTIONS.get(case, [])) == 2
    assert_one_sentence(capsys, sentence)


REFUSED: dict[str, list[str]] = {
    "--best auc is none of the model's metrics (accuracy, loss)": ["--task", "digits", "--best", "auc"],
    "--export /dev/null can't be written to": ["--task", "digits", "--export", "/dev/null"],
    "--profile needs a directory": ["--task", "digits", "--profile", "1:2"],
    "--profile begins with step 9000, and the training ends with step 450": [
        *("--task", "digits", "--profile", "9000:9001", "--tensorboard", "."),
    ],
    "choose one": ["--task", "digits", "--deterministic", "--check-numerics"],
    "is neither digits, nor": ["--task", "no_such_module.anywhere"],
    "there is no module worker_image.no_such_task": ["--task", "worker_image.no_such_task"],
    "would train 2 separate models": ["--task", "digits", "--strategy", "mirrored"],
    "gs://bucket/checkpoints can't be written to (": ["--task", "digits", "--checkpoint-dir", "gs://bucket/checkpoints"],
    "can't be written to (Not a directory)": ["--task", "digits", "--checkpoint-dir", "/dev/null/checkpoints"],
    "can't be written to (File exists)": ["--task", "digits", "--checkpoint-dir", "/dev/null"],
    "can't be written to (": ["--task", "digits", "--checkpoint-dir", "/sys/tfrun"],
}


@pytest.mark.parametrize("sentence", list(REFUSED))
def test_what_can_not_work_is_refused(sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option is one sentence and exit code 2, before anything is trained."""
    if "--strategy" in REFUSED[sentence]:
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}))
    assert run(*REFUSED[sentence]) == 2
    assert_one_sentence(capsys, sentence)


@pytest.mark.parametrize("options", [["--epochs", "0"], ["--batch-size", "-1"], ["--seed", "x"], ["--loop", "other"], []])
def test_numbers_out_of_range_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options of the wrong form are refused by argparse, with exit code 2."""
    assert run(*(["--task", "digits", *options] if options else [])) == 2
    assert "error: " in capsys.readouterr().err


def assert_one_sentence(capsys: pytest.CaptureFixture[str], part: str) -> None:
    said = capsys.readouterr().err
    assert said.startswith("train: ")
    assert part in said
    assert said.count("\n") == 1
