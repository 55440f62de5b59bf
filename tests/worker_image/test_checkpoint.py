"""Checkpoints in this very process, with one worker, and with several in processes of their own: real TensorFlow, real files."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import checkpoint_files as files  # noqa: E402 # the import above may skip this file
from worker_image.checkpoint import Checkpoints, Place, Restored  # noqa: E402
from worker_image.snapshot import Snapshots  # noqa: E402
from worker_image.strategies import Group  # noqa: E402
from worker_image.train_errors import TrainError, WrongInputError  # noqa: E402

ROOT = Path(__file__).parents[2]
ALONE = Group(tf.distribute.get_strategy())
MEANING = {"seed": 0}
LAYOUT = {"workers": 1, "global batch": 32}


def a_model(units: int = 8, layers: int = 1, value: float | None = None) -> Any:
    """A compiled model, with a metric, dropout and an optimizer with slots; all weights equal to a value, if one is given."""
    stack = [tf.keras.Input((4,)), *(tf.keras.layers.Dense(units) for _ in range(layers)), tf.keras.layers.Dropout(0.2)]
    model = tf.keras.Sequential([*stack, tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
    if value is not None:
        fill(model, value)
    return model


def fill(model: Any, value: float) -> None:
    for weight in model.trainable_weights:
        weight.assign(tf.fill(weight.shape, value))


def value_of(model: Any) -> float:
    """The value that all weights have."""
    values = {float(number) for weight in model.trainable_weights for number in np.ravel(weight.numpy())}
    assert len(values) == 1
    return values.pop()


def checkpoints(directory: Path | str, model: Any, **options: Any) -> Checkpoints:
    files.prepare_directory(str(directory))
    return Checkpoints(str(directory), ALONE, model, MEANING, **options)


def save(made: Checkpoints, step: int, metrics: dict[str, float] | None = None, wait: bool = True) -> None:
    made.save(Place(step, step // 10, step % 10 * 32), LAYOUT, metrics or {}, wait=wait)


def contents(prefix: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def weights_in(directory: Path | str, step: int) -> str:
    return files.join(files.folder_of(str(directory), step), "weights")


@pytest.mark.parametrize("scheme", ["", "ram:/"])
def test_what_was_saved_comes_back(scheme: str, tmp_path: Path) -> None:
    """Place, layout, weights and optimizer; on a disk, and in TensorFlow's own object store in memory, which stands in for gs://."""
    directory = scheme + str(tmp_path / "c")
    model = a_model(value=3.0)
    assert checkpoints(directory, model).restore() is None
    save(checkpoints(directory, model), 25)
    slots = [variable.numpy() for variable in model.optimizer.variables]

    other = a_model(value=4.0)
    assert checkpoints(directory, other).restore() == Restored(Place(25, 2, 160), LAYOUT)
    assert value_of(other) == 3.0
    for expected, variable in zip(slots, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(expected, variable.numpy())


def test_the_file_is_what_tensorflow_writes(tmp_path: Path) -> None:
    """Every name, value and the object graph equal those of tf.train.Checkpoint.write, whatever is saved."""
    objects = {
        "model": a_model(),
        "table": tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0),
        "generator": tf.random.Generator.from_seed(1),
        "many": [tf.Variable(1.0), {"a": tf.Variable([2, 3])}],
        "text": tf.Variable("text"),
    }
    objects["table"].insert("a", 1)
    content = tf.train.Checkpoint(**objects)
    content.write(str(tmp_path / "theirs"))
    Snapshots(content, ALONE.strategy, list).take().write(str(tmp_path / "ours"))
    theirs, ours = contents(str(tmp_path / "theirs")), contents(str(tmp_path / "ours"))
    assert theirs.keys() == ours.keys()
    assert len(ours) > 20
    for name, value in theirs.items():
        np.testing.assert_array_equal(value, ours[name])


def test_plain_tensorflow_loads_it(tmp_path: Path) -> None:
    """tf.train.Checkpoint(model=…, optimizer=…).restore takes it."""
    save(checkpoints(tmp_path, a_model(value=3.0)), 1)
    other = a_model(value=4.0)
    plain = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    plain.restore(weights_in(tmp_path, 1)).expect_partial()
    assert value_of(other) == 3.0


def test_what_appears_later_is_saved_too(tmp_path: Path) -> None:
    """Variables, and a table's rows, that were not there at the first save are in the next."""
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
    holder = tf.Module()
    holder.one = tf.Variable(1.0)
    made = Checkpoints.of(str(tmp_path), ALONE, {"holder": holder, "table": table})
    save(made, 1)
    holder.two = tf.Variable(2.0)
    table.insert(tf.constant(7, tf.int64), tf.constant(70, tf.int64))
    save(made, 2)
    later = contents(weights_in(tmp_path, 2))
    assert later["holder/two/.ATTRIBUTES/VARIABLE_VALUE"] == 2.0
    assert later["table/.ATTRIBUTES/table-values"] == [70]


def test_a_legacy_optimizers_late_slots_are_saved(tmp_path: Path) -> None:
    """tf.compat.v1's optimizers make theirs at the first step, and they are no objects of their own."""
    variable, optimizer = tf.Variable([1.0, 2.0]), tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    made = Checkpoints.of(str(tmp_path), ALONE, {"optimizer": optimizer, "variable": variable})
    save(made, 1)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    save(made, 2)
    assert [name for name in contents(weights_in(tmp_path, 2)) if "momentum" in name]


def test_a_tensorflow_to_come_is_asked_to_write_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TensorFlow no longer tells what it would write, its own write is used: slower, with the same result."""
    model = a_model(value=3.0)
    made = checkpoints(tmp_path, model)
    monkeypatch.setattr(Snapshots, "_planned", lambda self: None)
    save(made, 1)
    monkeypatch.undo()
    other = a_model(value=4.0)
    assert checkpoints(tmp_path, other).restore()
    assert value_of(other) == 3.0


class Held:
    """Keeps the first file operation of a checkpoint waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        begin = files.begin
        monkeypatch.setattr(files, "begin", lambda folder: (self.go.wait(30), begin(folder)))


def test_the_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved are the values at the call, though the variables change meanwhile, by all ways that training changes them."""
    model = a_model(value=3.0)
    made = checkpoints(tmp_path, model)
    held = Held(monkeypatch)
    save(made, 1, wait=False)
    expected = [variable.numpy().copy() for variable in model.variables]
    model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=3, verbose=0)
    model.optimizer.apply([tf.ones(weight.shape) for weight in model.trainable_weights], model.trainable_weights)
    for weight in model.weights:
        weight.assign_add(tf.ones(weight.shape, weight.dtype))
    assert files.complete_steps(str(tmp_path)) == []
    held.go.set()
    made.close()

    other = a_model(value=4.0)
    assert checkpoints(tmp_path, other).restore()
    assert value_of(other) == 3.0
    for saved, variable in zip(expected, other.variables, strict=True):
        np.testing.assert_array_equal(saved, variable.numpy())


def test_a_second_save_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One checkpoint is written at a time, in order; one that exists is not written again."""
    made = checkpoints(tmp_path, a_model())
    held = Held(monkeypatch)
    save(made, 1, wait=False)
    save(made, 1, wait=False)
    threading.Timer(0.2, held.go.set).start()
    save(made, 2, wait=False)
    assert files.complete_steps(str(tmp_path)) == [1]
    made.close()
    assert files.complete_steps(str(tmp_path)) == [2, 1]


def test_the_best_and_the_newest_are_kept(tmp_path: Path) -> None:
    """By the metric that is asked for, also after a restart."""
    for step, loss in enumerate([3.0, 1.0, 2.0, float("nan"), 4.0], start=1):
        save(checkpoints(tmp_path, a_model(), keep=2, best="val_loss"), step, {"val_loss": loss})
    assert files.complete_steps(str(tmp_path)) == [5, 4, 2]


def test_a_failed_write_is_told_at_the_next_call(tmp_path: Path) -> None:
    """A full disk: nothing that looks like a checkpoint is left, and one sentence names step, directory and cause."""
    made = checkpoints(tmp_path, a_model())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        save(made, 1, wait=False)
        with pytest.raises(TrainError) as told:
            save(made, 2, wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.fullmatch(
        rf"the checkpoint of step 1 could not be written to {tmp_path}: .*File too large; see to that, and start again to .*",
        str(told.value),
    )
    assert told.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []
    save(made, 1)  # there is room again
    assert files.complete_steps(str(tmp_path)) == [1]


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    """The loss tells it only one step later, and the checkpoint would be useless."""
    model = a_model()
    made = checkpoints(tmp_path, model)
    model.weights[0].assign(tf.fill(model.weights[0].shape, 1e38))  # the sum overflows, the weights are numbers
    save(made, 1)
    model.weights[0].assign(tf.constant([[float("nan")] + [0.0] * 7] + [[0.0] * 8] * 3))
    with pytest.raises(TrainError, match="the weights are no longer finite after step 2; lower the learning rate"):
        save(made, 2)
    assert files.complete_steps(str(tmp_path)) == [1]


def damage_byte(directory: Path, step: int) -> None:
    data = Path(weights_in(directory, step) + ".data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 4
    data.write_bytes(content)


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A flipped bit anywhere in what TensorFlow reads again is found at the load: the checkpoint before is taken, whole."""
    model = a_model()
    made = checkpoints(tmp_path, model, keep=2)
    fill(model, 1.0)
    save(made, 1)
    fill(model, 2.0)
    save(made, 2)
    chance = random.Random(1)
    paths = [Path(weights_in(tmp_path, 2) + end) for end in (".index", ".data-00000-of-00001")]
    whole = [path.read_bytes() for path in paths]
    for turn in range(30):
        path, content = paths[turn % 2], bytearray(whole[turn % 2])
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        fill(model, 4.0)
        restored = checkpoints(tmp_path, model).restore()
        assert restored
        assert value_of(model) == restored.place.step  # some bytes mean nothing, such as those between two blocks
        assert restored.place.step == 1 or turn % 2 == 0
        path.write_bytes(whole[turn % 2])


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says so, and it is written anew when the training comes to its step again."""
    model = a_model()
    save(checkpoints(tmp_path, model), 1)
    save(checkpoints(tmp_path, model), 2)
    damage_byte(tmp_path, 2)
    again = checkpoints(tmp_path, model)
    restored = again.restore()
    assert restored
    assert restored.place.step == 1
    assert re.search(r"checkpoint 2 is damaged \(.*[Cc]hecksum.*\), trying the one before", capsys.readouterr().out)
    save(again, 2)
    restored = checkpoints(tmp_path, model).restore()
    assert restored
    assert restored.place.step == 2


def test_a_damaged_checkpoint_takes_no_other_ones_place(tmp_path: Path) -> None:
    """What is saved after resuming before a damaged one is kept, also where one is to be kept."""
    model = a_model()
    made = checkpoints(tmp_path, model, keep=2)
    save(made, 1)
    save(made, 9)
    damage_byte(tmp_path, 9)
    again = checkpoints(tmp_path, model, keep=1)
    assert again.restore()
    save(again, 5)
    restored = checkpoints(tmp_path, model).restore()
    assert restored
    assert restored.place.step == 5


@pytest.mark.parametrize("how", ["content", "size", "marker"])
def test_nothing_but_damaged_checkpoints_end_the_training(how: str, tmp_path: Path) -> None:
    """To train from the start would overwrite what may be of use; the sentence says how to."""
    save(checkpoints(tmp_path, a_model()), 1)
    if how == "content":
        damage_byte(tmp_path, 1)
    else:
        name = "weights.data-00000-of-00001" if how == "size" else files.MARKER
        (Path(files.folder_of(str(tmp_path), 1)) / name).write_bytes(b"{")
    with pytest.raises(TrainError, match=r"no checkpoint in .* can be read \(.*\); remove them to train from the start"):
        checkpoints(tmp_path, a_model()).restore()


def test_another_trainings_checkpoints_are_refused(tmp_path: Path) -> None:
    """Another meaning, other shapes, fewer or more layers: one sentence each, before anything is loaded."""
    save(checkpoints(tmp_path, a_model()), 1)
    with pytest.raises(WrongInputError, match="were made with seed 0, and this run has seed 1, so that"):
        Checkpoints(str(tmp_path), ALONE, a_model(), {"seed": 1}).restore()
    for other, why in (
        (a_model(units=9), r"its weight 1 has the shape \[4, 8\], here \[4, 9\]"),
        (a_model(layers=2), "it has 8 weights, .* 10"),
    ):
        fill(other, 4.0)
        with pytest.raises(WrongInputError, match=f"the checkpoints in {tmp_path} are another model's \\({why}.*; use another directory"):
            checkpoints(tmp_path, other).restore()
        assert value_of(other) == 4.0
    with pytest.raises(WrongInputError, match="are another model's"):
        Checkpoints.of(str(tmp_path), ALONE, {"something": tf.Variable(1.0)}, MEANING).restore()


KILLS = 15
SAVES_WITHOUT_END = """
import sys
import tensorflow as tf
from worker_image.checkpoint import Checkpoints, Place
from worker_image.strategies import Group

values = [tf.Variable(tf.zeros([1_000_000])) for _ in range(5)]  # 20 MB
made = Checkpoints.of(sys.argv[1], Group(tf.distribute.get_strategy()), {"values": values}, keep=2)
restored = made.restore()
step = restored.place.step if restored else 0
for value in values:
    assert float(tf.reduce_min(value)) == float(tf.reduce_max(value)) == step, (step, value)
print("exact", step, flush=True)
while True:
    step += 1
    for value in values:
        value.assign_add(tf.ones([1_000_000]))
    made.save(Place(step, 0, 0), {}, {})
    print(step, flush=True)
"""


@pytest.mark.tensorflow
@pytest.mark.timeout(300)  # sixteen imports of TensorFlow
def test_a_killed_save_is_never_loaded(tmp_path: Path) -> None:
    """SIGKILL at fifteen random moments of saving without a pause: the next process finds an exact state, of a step not long before."""
    chance = random.Random(1)
    came_to = 0
    for _ in range(KILLS + 1):
        with subprocess.Popen(
            [sys.executable, "-c", SAVES_WITHOUT_END, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            told, exact = process.stdout.readline().split()
            assert told == "exact"
            assert came_to - 1 <= int(exact) <= came_to + 1  # the save before the last was complete when the last one began
            lines = [process.stdout.readline() for _ in range(chance.randrange(4))]
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            came_to = int([exact, *lines, *process.stdout][-1])
    assert came_to > KILLS


WORKER = """
import json, os, resource, signal, sys
import tensorflow as tf
from worker_image import checkpoint_files, strategies
from worker_image.checkpoint import Checkpoints, Place
from worker_image.train_errors import TrainError

directory, what = sys.argv[1:]
config = json.loads(os.environ["TF_CONFIG"])
index, workers = config["task"]["index"], len(config["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy() if workers > 1 else tf.distribute.get_strategy()
group = strategies.Group(strategy, workers, index)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    model.optimizer.build(model.trainable_variables)
    on_read = dict(synchronization=tf.VariableSynchronization.ON_READ, trainable=False)
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM, **on_read)
    mean = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN, **on_read)

def replica():
    place = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
    total.assign_add(1.0 + place)
    mean.assign_add(1.0 + 2.0 * place)
    model.optimizer.apply_gradients([(tf.ones([4, 1]) / strategy.num_replicas_in_sync, model.trainable_variables[0])])

step = tf.function(lambda: strategy.run(replica))
objects = {"model": model, "optimizer": model.optimizer, "total": total, "mean": mean}
made = Checkpoints.of(directory, group, objects, {"seed": 0})

def told(number):
    state = [*model.trainable_variables, *model.optimizer.variables]
    values = [float(tf.reduce_sum(tf.cast(value, tf.float64))) for value in state]
    print("state", number, *(round(value, 4) for value in [*values, float(total.read_value()), float(mean.read_value())]), flush=True)

try:
    if what == "damaged here" and index == 1:
        load, calls = made._content.read, []
        def fails_once(path):
            calls.append(path)
            if len(calls) == 1:
                raise tf.errors.DataLossError(None, None, "a bad sector")
            return load(path)
        made._content.read = fails_once
    restored = made.restore()
    number = restored.place.step if restored else 0
    if restored:
        print("layout", restored.layout, flush=True)
        told(number)
    for _ in range(3):
        step()
        number += 1
        if what == "full" and index == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, -1))
        made.save(Place(number, 0, number * 32), {"workers": workers}, {})
    made.close()
    told(number)
except TrainError as e:
    sys.exit(f"told: {e}")
"""


def work(directory: Path, workers: int, what: str = "") -> list[tuple[int, list[str]]]:
    """Exit code and lines of each worker of a group."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    processes = []
    for index in range(workers):
        config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": config}
        command = [sys.executable, "-c", WORKER, str(directory), what]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    interesting = ("layout", "state", "told", "checkpoint")
    return [
        (process.returncode, [line for line in text.splitlines() if line.startswith(interesting)] or text.splitlines()[-5:])
        for process, text in zip(processes, said, strict=True)
    ]


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_another_number_of_workers_resumes(tmp_path: Path) -> None:
    """2 workers, then 1, then 2: weights, slots, sums and means over the replicas are those that were saved."""
    before: list[list[str]] = [[]]
    for workers, former in ((2, 0), (1, 2), (2, 1)):
        results = work(tmp_path, workers)
        for code, lines in results:
            assert code == 0, lines
            assert lines[:-1] == ([f"layout {{'workers': {former}}}", before[-1]] if former else [])
        before.append(results[0][1][-1])
    total, mean = map(float, str(before[1]).split()[-2:])
    assert (total, mean) == (3 * (1 + 2), 3 * (1 + 3) / 2)
    assert files.complete_steps(str(tmp_path)) == [9, 8, 7]


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_what_only_one_worker_meets_ends_or_turns_all(tmp_path: Path) -> None:
    """The first worker's full disk ends both with a sentence; what one worker can't read, neither uses."""
    (tmp_path / "full").mkdir()
    for code, lines in work(tmp_path / "full", 2, "full"):
        assert code == 1, lines
        assert re.match(
            r"told: the checkpoint of step 1 (could not be written to .*File too large|was not made; the first worker's)", lines[-1]
        )
    assert work(tmp_path, 2)[0][0] == 0
    first, second = work(tmp_path, 2, "damaged here")
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert second[1][0] == "checkpoint 3 is damaged (a bad sector), trying the one before"
    assert first[1][1].split()[:2] == second[1][2].split()[:2] == ["state", "2"]


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_directories_that_are_not_shared_are_told(tmp_path: Path) -> None:
    """A worker that sees no checkpoint where another one sees some ends both."""
    save(checkpoints(tmp_path / "0", a_model()), 44)
    (tmp_path / "1").mkdir()
    program = WORKER.replace("directory, what = sys.argv[1:]", "directory, what = sys.argv[1:]; import pathlib").replace(
        "made = Checkpoints.of(directory,", "made = Checkpoints.of(str(pathlib.Path(directory, str(index))),"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "WORKER", program)
        results = work(tmp_path, 2)
    for code, lines in results:
        assert code == 1
        assert "told: one worker sees checkpoint 44 in " in lines[-1]
