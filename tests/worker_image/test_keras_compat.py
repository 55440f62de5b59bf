"""keras_compat against the installed Keras: real workers, real training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import close

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "keras_fit.py"
MESSAGE = (
    "fit under MultiWorkerMirroredStrategy fails in this version (keras-team/keras#20585); tfrun's fix is applied, --no-compat turns it off"
)


def run(folder: Path, *arguments: str, workers: int = 2) -> list[dict[str, Any]]:
    """What each worker (or the one process, with workers=0) wrote."""
    folder.mkdir(exist_ok=True)
    names = ["alone"] if workers == 0 else [str(index) for index in range(workers)]
    processes = [
        subprocess.Popen([sys.executable, PROGRAM, folder, *arguments], env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environ})
        for environ in ([{}] if workers == 0 else tf_configs(workers))
    ]
    try:
        for process in processes:
            process.wait(timeout=100)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


def tf_configs(workers: int) -> list[dict[str, str]]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    cluster = {"worker": [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]}
    for s in sockets:
        s.close()
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})} for i in range(workers)]


@pytest.mark.tensorflow
def test_keras_still_fails_without_the_fix(tmp_path: Path) -> None:
    """The installed Keras still has the fault; when this test fails, upstream has fixed it and keras_compat can go."""
    for worker in run(tmp_path, "fit"):
        assert worker["fit"]["error"].startswith("ValueError: Attempt to convert a value (PerReplica")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two workers with the fix, one run for the tests that look at different sides of it."""
    return run(tmp_path_factory.mktemp("fixed"), "--compat", "before", "fit", "more", "own_error", "own_error_while_building")


@pytest.mark.tensorflow
def test_two_workers_train_as_one_process_does(fixed: list[dict[str, Any]], tmp_path: Path) -> None:
    """With the fix, fit, evaluate, predict and train_on_batch give both workers the weights and metrics of one process."""
    first, second = fixed
    (alone,) = run(tmp_path, "fit", "more", workers=0)
    for scenario in ("fit", "more"):
        assert first[scenario] == second[scenario]
        assert close(first[scenario], alone[scenario])


@pytest.mark.tensorflow
def test_the_user_is_told_once(fixed: list[dict[str, Any]]) -> None:
    """However many models a program trains, each worker says in one line that the fix acts, and how to turn it off."""
    for worker in fixed:
        assert worker["notes"] == [f"keras {worker['keras']}: {MESSAGE}"]


@pytest.mark.tensorflow
def test_errors_of_the_program_stay_its_own(fixed: list[dict[str, Any]]) -> None:
    """A ValueError that the program's own model raises reaches the program, even with the very words of Keras's failure."""
    for worker in fixed:
        assert worker["own_error"]["error"] == "ValueError: Invalid reduction dimension: PerReplica"
        assert "Attempt to convert a value (PerReplica) to a Tensor" in worker["own_error_while_building"]["error"]


@pytest.mark.tensorflow
def test_a_keras_without_the_fault_is_left_as_it_is(tmp_path: Path) -> None:
    """Once upstream fits under several workers, the fix does and says nothing."""
    first, second = run(tmp_path, "--fixed", "fit")
    assert first["fit"] == second["fit"]
    assert "error" not in first["fit"]
    assert first["notes"] == second["notes"] == []


@pytest.mark.tensorflow
def test_a_keras_that_is_too_old_is_left_as_it_is_and_named(tmp_path: Path) -> None:
    """A Keras whose replicas drift apart or whose metrics are wrong is not helped to run, and the user is told which one to install."""
    for worker in run(tmp_path, "--compat", "after", "--keras-version", "3.9.2", "fit"):
        assert worker["fit"]["error"].startswith("ValueError: Attempt to convert a value (PerReplica")
        (note,) = worker["notes"]
        assert note.startswith("keras 3.9.2: ")
        assert "3.10 and newer" in note


@pytest.mark.tensorflow
@pytest.mark.parametrize("flags", [(), ("--mirrored",)], ids=["one device", "MirroredStrategy"])
def test_one_process_is_none_of_its_business(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A program of one process trains as it would without the fix, and is told nothing."""
    (alone,) = run(tmp_path, *flags, "--compat", "before", "fit", workers=0)
    assert "error" not in alone["fit"]
    assert alone["notes"] == []


def test_a_program_without_keras_never_meets_it() -> None:
    """Installing the fix imports neither Keras nor TensorFlow, and other imports go on as before."""
    check = """
import sys
from worker_image import keras_compat

def no_note(text):
    raise AssertionError(text)

keras_compat.install(no_note)
import wave
assert not {"keras", "tensorflow", "numpy"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=60)


def test_the_module_is_fixed_when_it_comes_and_keeps_its_loader(tmp_path: Path) -> None:
    """Keras's trainer, imported after install, is loaded by its own loader and comes out wrapped."""
    package = tmp_path.joinpath("keras", "src", "backend", "tensorflow")
    package.mkdir(parents=True)
    for level in (package, *package.parents[:3]):
        (level / "__init__.py").touch()
    package.joinpath("trainer.py").write_text("def reduce_per_replica(values, strategy, reduction):\n    return 'own'\n")
    check = """
import importlib.machinery, inspect, sys
from worker_image import keras_compat
before = list(sys.meta_path)
keras_compat.install(print)
from keras.src.backend.tensorflow import trainer
assert sys.meta_path == before
assert trainer.reduce_per_replica.__wrapped__(1, 2, 3) == "own"
assert trainer.reduce_per_replica(1, 2, "concat") == "own"
assert type(trainer.__loader__) is type(trainer.__spec__.loader) is importlib.machinery.SourceFileLoader
assert inspect.getsource(trainer).startswith("def reduce_per_replica")
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    subprocess.run([sys.executable, "-c", check], env=environ, check=True, timeout=60)
