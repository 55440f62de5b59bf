"""The examples do what they say: each is run with its own command, and has to learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPO, Run

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

Finish = Callable[..., Run]
EXAMPLES = REPO / "examples"
TRAIN = ["-m", "worker_image.train", "--task"]


def python(*arguments: object, **added: str) -> subprocess.CompletedProcess[str]:
    """Run Python as the only worker, without tfrun, to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFRUN_", "TF_CONFIG"))}
    environment = {**kept, "PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "2", **added}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False)


def accuracy(said: str) -> float:
    found = re.findall(r"test accuracy (\d\.\d+) after \d+ steps", said)
    assert found, said
    return float(found[-1])


def test_digits_cnn(finish: Finish) -> None:
    """Two workers, scikit-learn's digits, a network of one's own."""
    run = finish("-n", "2", *TRAIN, EXAMPLES / "digits_cnn.py", "--epochs", "5")
    assert run.process.returncode == 0, run.report()
    assert accuracy(run.report()) >= 0.9


def test_tfrecords(finish: Finish, tmp_path: Path) -> None:
    """Files are written by the example itself, and trained from by two workers."""
    written = python(EXAMPLES / "tfrecords.py", tmp_path / "digits")
    assert written.returncode == 0, written.stderr
    assert len(list((tmp_path / "digits").glob("train-*-of-8.tfrecord"))) == 8
    run = finish("-n", "2", *TRAIN, EXAMPLES / "tfrecords.py", "--epochs", "8", DIGITS=str(tmp_path / "digits"))
    assert run.process.returncode == 0, run.report()
    assert accuracy(run.report()) >= 0.85


def test_mnist_dense(tmp_path: Path) -> None:
    """MNIST can't be downloaded here: a file of its format, made of smaller real digits, is in Keras's cache."""
    (tmp_path / "datasets").mkdir()
    small_mnist(tmp_path / "datasets" / "mnist.npz")
    done = python(*TRAIN, EXAMPLES / "mnist_dense.py", "--epochs", "5", KERAS_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 0.85


def small_mnist(path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = np.pad(np.kron(digits.images * 15.9, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))).astype("uint8")
    labels = digits.target.astype("uint8")
    np.savez(path, x_train=images[:1400], y_train=labels[:1400], x_test=images[1400:], y_test=labels[1400:])


def test_mnist_that_can_not_be_downloaded_is_one_sentence(tmp_path: Path) -> None:
    """The proxy is a port where nobody listens: exit code 2, and what to do instead."""
    done = python(*TRAIN, EXAMPLES / "mnist_dense.py", KERAS_HOME=str(tmp_path), TMPDIR=str(tmp_path), https_proxy="http://127.0.0.1:9")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert re.match(rf"train: mnist.npz is not in {tmp_path}/datasets and can't be downloaded from https://.* \(.*refused\); put", last), (
        last
    )
    assert "Traceback" not in done.stderr


def test_text_transformer() -> None:
    """Prose and code are told apart, much better than by guessing."""
    done = python(*TRAIN, EXAMPLES / "text_transformer.py", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 0.8


def test_custom_loop(finish: Finish) -> None:
    """A loop of one's own on two workers."""
    run = finish("-n", "2", EXAMPLES / "custom_loop.py")
    assert run.process.returncode == 0, run.report()
    assert accuracy(run.report()) >= 0.9


def test_custom_loop_without_tfrun(tmp_path: Path) -> None:
    """With plain Python it runs as well, and a second run finds what the first one saved."""
    folder = str(tmp_path / "checkpoints")
    first, second = (python(EXAMPLES / "custom_loop.py", TFRUN_CHECKPOINT_DIR=folder) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert accuracy(first.stdout) == accuracy(second.stdout) >= 0.9
