"""What is written for TensorBoard: scalars, and a profile of some steps. Real TensorFlow, real files."""

from __future__ import annotations

import importlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import scalars as scalars_module  # noqa: E402
from worker_image.profiling import Profile  # noqa: E402 # the import above may skip this file
from worker_image.scalars import Scalars  # noqa: E402
from worker_image.train_errors import WrongInputError  # noqa: E402

HOST_PLANE = "/host:CPU"  # a plane is a part of the machine


def events(path: Path) -> list[Any]:
    return list(tf.compat.v1.train.summary_iterator(str(path)))


def points(path: Path) -> list[tuple[str, int, float]]:
    """(name, step, value) of a file, in the order of writing, as TensorBoard reads it: by the kind of the first value of a name."""
    kinds: dict[str, str] = {}
    found = []
    for event in events(path):
        for value in event.summary.value:
            kinds.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
            assert value.tensor.dtype == tf.float32
            found.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    assert set(kinds.values()) <= {"scalars"}
    return found


def marks(path: Path) -> list[tuple[int, int]]:
    """(status, step) of the marks of a restart."""
    return [(event.session_log.status, event.step) for event in events(path) if event.HasField("session_log")]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("events.out.tfevents.*"))


def test_scalars_are_what_tensorboard_reads(tmp_path: Path) -> None:
    """Names with spaces and slashes, numbers of any size, several at a step."""
    scalars = Scalars(str(tmp_path / "new" / "tb"))
    scalars.write(10, {"loss": 0.25, "examples/s": 52_000.0})
    scalars.write(20, {"loss": float("inf"), "epoch accuracy": 1.0})
    scalars.write(30, {})
    scalars.close()
    (file,) = files(tmp_path / "new" / "tb")
    assert events(file)[0].file_version == "brain.Event:2"
    assert points(file) == [("loss", 10, 0.25), ("examples/s", 10, 52_000.0), ("loss", 20, float("inf")), ("epoch accuracy", 20, 1.0)]


def test_a_flush_shows_what_was_written(tmp_path: Path) -> None:
    """A chief that is killed afterwards loses none of it."""
    scalars = Scalars(str(tmp_path))
    scalars.write(1, {"loss": 0.5})
    scalars.flush()
    assert points(files(tmp_path)[0]) == [("loss", 1, 0.5)]
    scalars.close()
    scalars.close()
    scalars.write(2, {"loss": 0.5})
    assert len(points(files(tmp_path)[0])) == 1


def test_a_resumed_run_takes_over_after_its_step(tmp_path: Path) -> None:
    """In a file of its own, which begins with the mark that makes TensorBoard forget what came after."""
    for resumed in (0, 40):
        scalars = Scalars(str(tmp_path), resumed)
        scalars.write(resumed + 10, {"loss": 0.5})
        scalars.close()
    first, second = files(tmp_path)
    start = tf.compat.v1.SessionLog.START
    assert (marks(first), marks(second)) == ([(start, 1)], [(start, 41)])
    assert points(second) == [("loss", 50, 0.5)]


def test_scalars_are_written_in_a_strategys_scope(tmp_path: Path) -> None:
    """Nothing of theirs is an operation that a strategy would place."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        scalars = Scalars(str(tmp_path))
        scalars.write(1, {"loss": 1.0})
        scalars.close()
    assert tf.executing_eagerly()
    assert points(files(tmp_path)[0]) == [("loss", 1, 1.0)]


@pytest.mark.parametrize("directory", ["{}/file/tb", "none://bucket/tb"])
def test_a_directory_that_can_not_be_made_is_refused(tmp_path: Path, directory: str) -> None:
    """In one sentence, before the training."""
    (tmp_path / "file").touch()
    with pytest.raises(WrongInputError, match=r"^the directory .*/tb for TensorBoard can't be written to \([^\n]+\); give another$"):
        Scalars(directory.format(tmp_path))


def test_a_place_that_fails_later_does_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk costs one sentence, and no more scalars are written."""
    scalars = Scalars(str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        for step in range(20):
            scalars.write(step, {"loss": 1.0})
            scalars.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    scalars.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train: scalars for TensorBoard can't be written any more (")
    assert line.endswith("; the training goes on")


def test_what_is_written_is_seen_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a caller that never flushes."""
    monkeypatch.setattr(scalars_module, "FLUSH", 0.0)
    scalars = Scalars(str(tmp_path))
    scalars.write(1, {"loss": 1.0})
    assert points(files(tmp_path)[0]) == [("loss", 1, 1.0)]
    scalars.close()


@pytest.fixture
def work() -> Any:
    """A step of a program that TensorFlow has to do something for."""
    matrix = tf.random.normal([64, 64])
    step = tf.function(lambda: tf.linalg.matmul(matrix, matrix))
    step()
    return step


@pytest.fixture(autouse=True)
def _no_profiler_stays() -> Iterator[None]:
    yield
    try:
        tf.profiler.experimental.stop(save=False)
    except tf.errors.UnavailableError:
        return
    pytest.fail("a profiler was still running")


def spaces(directory: Path) -> list[Any]:
    """The profiles of a directory, parsed."""
    proto = importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    return [proto.XSpace.FromString(path.read_bytes()) for path in directory.glob("plugins/profile/*/*.xplane.pb")]


def host_events(space: Any) -> list[str]:
    """The names of what happened on the host."""
    (host,) = (plane for plane in space.planes if plane.name == HOST_PLANE)
    return [host.event_metadata[event.metadata_id].name for line in host.lines for event in line.events]


def train(profile: Profile, work: Any, steps: range, per_call: int) -> None:
    """A loop that ends its calls where the profile wants it."""
    step = steps.start
    profile.boundary(step)
    while step < steps.stop:
        ends = [stop for stop in (*profile.stops(), steps.stop) if stop > step]
        for _ in range(min(per_call, min(ends) - step)):
            work()
            step += 1
        profile.boundary(step)
    profile.close()


def test_a_profile_holds_the_steps_that_were_asked_for(tmp_path: Path, work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the one before nor the one after: as many runs of the function as steps."""
    train(Profile(str(tmp_path), 4, 6), work, range(10), per_call=5)
    (space,) = spaces(tmp_path)
    names = host_events(space)
    assert names.count("FunctionRun") == 3
    assert sum("MatMul" in name for name in names) == 3
    assert f"profile of the steps 4 to 6: {tmp_path}/plugins/profile (tensorboard --logdir {tmp_path})\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (range(5), "profile of the steps 4 to 5: "),  # the training ends before
        (range(5, 10), "profile of the steps 6 to 8: "),  # it resumes in between
        (range(3), ""),  # it ends when the profiler has just been started
        (range(8, 20), ""),
    ],
)
def test_a_run_of_a_part_of_the_steps_profiles_that_part(
    tmp_path: Path, work: Any, steps: range, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And one that has none of them profiles nothing."""
    train(Profile(str(tmp_path), 4, 8), work, steps, per_call=4)
    assert len(spaces(tmp_path)) == bool(told)
    assert capfd.readouterr().out.startswith(told)


def test_the_first_step_can_be_profiled(tmp_path: Path, work: Any) -> None:
    """Steps count from 1."""
    assert Profile(str(tmp_path), 1, 2).stops() == [0, 2]
    train(Profile(str(tmp_path), 1, 2), work, range(4), per_call=10)
    (space,) = spaces(tmp_path)
    assert host_events(space).count("FunctionRun") == 2


def test_one_worker_is_profiled(tmp_path: Path, work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The others stop at the same steps, so that the calls of all are equally long."""
    for steps in (range(3), range(10)):
        other = Profile(str(tmp_path), 4, 6, here=False)
        assert other.stops() == [3, 6]
        train(other, work, steps, per_call=5)
    assert not spaces(tmp_path)
    assert "profile" not in capfd.readouterr().out


def test_a_profiler_that_runs_already_is_left_alone(tmp_path: Path, work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The user's own; ours says so once, and the training goes on."""
    tf.profiler.experimental.start(str(tmp_path / "own"))
    train(Profile(str(tmp_path), 2, 4), work, range(6), per_call=1)
    tf.profiler.experimental.stop()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("train: ")]
    assert lines == ["train: the profile did not start (Another profiler is running); the training goes on without it"]
    assert len(spaces(tmp_path / "own")) == 1
    assert not spaces(tmp_path)


def test_a_profile_that_can_not_be_written_costs_a_sentence(tmp_path: Path, work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The place is looked at only at the end."""
    (tmp_path / "file").touch()
    train(Profile(str(tmp_path / "file"), 1, 2), work, range(4), per_call=1)
    assert "train: the profile can't be written (" in capfd.readouterr().err
