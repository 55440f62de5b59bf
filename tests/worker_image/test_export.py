"""What is exported is loaded in a fresh process that has nothing of tfrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import export, strategies  # noqa: E402 # the import above may skip this file
from worker_image.train_errors import TrainError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras 3 with NumPy 2

ROOT = Path(__file__).parents[2]
ALONE = strategies.Group(tf.distribute.get_strategy())
INPUT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

PLAIN = """
import importlib, json, sys
import numpy as np
import tensorflow as tf
assert not any(name.startswith("worker_image") for name in sys.modules)
keras = importlib.import_module(sys.argv[2])
x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
model = keras.models.load_model(sys.argv[1] + "/model.keras")
serving = tf.saved_model.load(sys.argv[1] + "/saved_model").signatures["serving_default"]
name = list(serving.structured_input_signature[1])[0]
served = list(serving(**{name: tf.constant(x)}).values())[0]
print(json.dumps([model.predict(x, verbose=0).tolist(), served.numpy().tolist(), model.evaluate(x, x[:, :1], verbose=0)]))
"""


def a_model(keras: Any, bias: float = 0.5) -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    model.fit(INPUT, INPUT[:, :1], verbose=0)
    model.weights[1].assign(tf.fill([8], bias))
    return model


def loaded(directory: Path, keras: str) -> list[Any]:
    """What plain Keras predicts, what the serving signature does, and what Keras evaluates."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", PLAIN, str(directory), keras]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.tensorflow
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_both_files_predict_what_the_model_predicts(package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With Keras 3 and with Keras 2; a former export is replaced, and nothing else is left or said."""
    keras = pytest.importorskip(package)
    export.export(a_model(keras, bias=9.0), keras, ALONE, str(tmp_path))
    model = a_model(keras)
    expected = model.predict(INPUT, verbose=0)
    capsys.readouterr()
    export.export(model, keras, ALONE, str(tmp_path))
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.keras", "saved_model"]
    by_keras, served, _ = loaded(tmp_path, package)
    np.testing.assert_allclose(by_keras, expected, rtol=1e-5)
    np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_an_object_store_gets_the_same(tmp_path: Path) -> None:
    """TensorFlow's own object store in memory stands in for gs://; a former export is replaced there too."""
    keras = pytest.importorskip("keras")
    directory = f"ram://{tmp_path}/export"
    tf.io.gfile.makedirs(directory)
    for bias in (9.0, 0.5):
        model = a_model(keras, bias)
        export.export(model, keras, ALONE, directory)
    assert sorted(name.rstrip("/") for name in tf.io.gfile.listdir(directory)) == ["model.keras", "saved_model"]
    served = tf.saved_model.load(directory + "/saved_model")
    np.testing.assert_allclose(served.serve(tf.constant(INPUT)), model.predict(INPUT, verbose=0), rtol=1e-5)


def test_a_killed_export_is_never_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step it dies at, both names hold the former export whole or the new one; the next export clears up."""
    keras = pytest.importorskip("keras")
    model = a_model(keras)
    export.export(model, keras, ALONE, str(tmp_path))

    class KilledError(BaseException):
        """As good as a SIGKILL: nothing catches it."""

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(export, "_publish", killed)
        patch.setattr(export.files, "remove", lambda folder: None)
        with pytest.raises(KilledError):
            export.export(model, keras, ALONE, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".export", "model.keras", "saved_model"]
    assert tf.saved_model.load(str(tmp_path / "saved_model"))
    export.export(model, keras, ALONE, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.keras", "saved_model"]


def test_what_goes_wrong_is_one_sentence(tmp_path: Path) -> None:
    """A model that Keras can't export, and a directory that can't take it."""
    keras = pytest.importorskip("keras")
    with pytest.raises(TrainError, match=r"the model could not be exported \(.*\); see what Keras says of it$"):
        export.export(keras.Sequential([keras.layers.Dense(1)]), keras, ALONE, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "model.keras").mkdir()
    with pytest.raises(TrainError, match=rf"the model could not be exported to {tmp_path}: Is a directory; see to that and start again$"):
        export.export(a_model(keras), keras, ALONE, str(tmp_path))


WORKER = """
import importlib, json, os, sys
import tensorflow as tf
from worker_image import export, strategies
keras = importlib.import_module(sys.argv[2])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
layers = keras.layers
with strategy.scope():
    stack = [layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *stack])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
x = tf.random.stateless_normal([6, 4], [1, index])
train = tf.function(lambda: strategy.run(model.train_step, args=((x, x[:, :1]),)))
for _ in range(3):
    train()
export.export(model, keras, strategies.Group(strategy, 2, index), sys.argv[1])
told = tf.reshape(tf.linspace(-1.0, 1.0, 12), [3, 4])
print(json.dumps(tf.convert_to_tensor(model(told, training=False)).numpy().tolist()))
"""


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_two_workers_export_once(package: str, tmp_path: Path) -> None:
    """All workers take part, since what differs by replica is read together; the first one's files are there, and predict the same."""
    pytest.importorskip(package)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    processes = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": config, "TMPDIR": str(tmp_path / "tmp")}
        (tmp_path / "tmp").mkdir(exist_ok=True)
        (tmp_path / "e").mkdir(exist_ok=True)
        command = [sys.executable, "-c", WORKER, str(tmp_path / "e"), package]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], said[0][1][-2000:]
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["model.keras", "saved_model"]
    assert list((tmp_path / "tmp").iterdir()) == []
    expected = json.loads(said[0][0].splitlines()[-1])
    by_keras, served, _ = loaded(tmp_path / "e", package)
    np.testing.assert_allclose(by_keras, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-5)
