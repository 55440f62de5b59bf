"""Folders of checkpoints, on a disk and in an object store. The latter is TensorFlow's own, in memory: it stands in for gs://."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_image import checkpoint_files as files
from worker_image.train_errors import WrongInputError

CONTENT = {"weights.index": b"i" * 100, "weights.data-00000-of-00001": bytes(range(256)) * 20}
ABOUT = {"step": 0, "epoch": 0, "examples": 0, "meaning": {"seed": 0}, "layout": {}, "metrics": {}}
Where = Callable[[str], str]


@pytest.fixture(params=["disk", "object store"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Makes a directory of that name, and gives its path."""
    if request.param == "disk":
        return lambda name: str(tmp_path / name)
    pytest.importorskip("tensorflow")
    return lambda name: f"ram://{tmp_path}/{name}"


def put(path: str, content: bytes) -> None:
    if "://" not in path:
        Path(path).write_bytes(content)
        return
    import tensorflow as tf

    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)  # an object store replaces an object, this one would lengthen it
    with tf.io.gfile.GFile(path, "wb") as f:
        f.write(content)


def checkpoint(directory: str, step: int, metrics: dict[str, float] | None = None) -> str:
    folder = files.folder_of(directory, step)
    files.begin(folder)
    for name, content in CONTENT.items():
        put(files.join(folder, name), content)
    files.complete(folder, {**ABOUT, "step": step, "metrics": metrics or {}})
    return folder


def test_a_complete_checkpoint_is_whole(where: Where) -> None:
    """What was declared complete counts, is undamaged, and tells what it is."""
    folder = checkpoint(where("c"), 7)
    assert files.complete_steps(where("c")) == [7]
    assert files.damage(folder) == ""
    assert files.read_marker(folder)["meaning"] == {"seed": 0}


@pytest.mark.parametrize("name", list(CONTENT))
def test_a_file_that_was_cut_short_is_noticed(name: str, where: Where) -> None:
    """A file of another length is damage, and told as such."""
    folder = checkpoint(where("c"), 7)
    put(files.join(folder, name), CONTENT[name][:50])
    assert files.damage(folder) == f"{name} has 50 bytes instead of {len(CONTENT[name])}"


@pytest.mark.parametrize("marker", ["", "{", "[]", "{}", '{"files": 3}', '{"files": [1]}', "\udcff"])
def test_a_marker_that_makes_no_sense_is_damage(marker: str, where: Where) -> None:
    """Whatever the marker holds, it is told and not raised."""
    folder = checkpoint(where("c"), 1)
    put(files.join(folder, files.MARKER), marker.encode(errors="surrogateescape"))
    assert files.damage(folder) == "complete.json can't be read"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A checkpoint of which a file is gone is damaged, and the file is named."""
    folder = checkpoint(str(tmp_path), 1)
    (Path(folder) / "weights.index").unlink()
    assert files.damage(folder) == "weights.index: No such file or directory"


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    """The same in an object store."""
    tf = pytest.importorskip("tensorflow")
    folder = checkpoint(f"ram://{tmp_path}/c", 1)
    tf.io.gfile.remove(folder + "/weights.index")
    assert files.damage(folder) == "weights.index: No such file or directory"


def test_a_death_at_any_moment_leaves_a_checkpoint_or_none(tmp_path: Path) -> None:
    """Of the files that exist while one is written, only those with the marker, which comes last, count."""
    whole = Path(checkpoint(str(tmp_path / "whole"), 2))
    names = [*CONTENT, files.MARKER + ".tmp"]
    for written in range(len(names) + 1):
        folder = Path(files.folder_of(str(tmp_path / str(written)), 2))
        folder.mkdir(parents=True)
        for name in names[:written]:
            shutil.copy(whole / name.replace(".tmp", ""), folder / name)
        assert files.complete_steps(str(folder.parent)) == []


def test_the_newest_are_kept_and_the_unfinished_removed(where: Where) -> None:
    """Pruning keeps as many as asked for, of the complete ones, and touches nothing that is not a checkpoint."""
    for step in (5, 40, 300, 2000):
        checkpoint(where("c"), step)
    files.begin(files.folder_of(where("c"), 9999))
    put(files.join(files.folder_of(where("c"), 9999), "weights.index"), b"half")
    put(files.join(where("c"), "notes"), b"mine")
    files.prune(where("c"), newest=2000, keep=2)
    assert files.complete_steps(where("c")) == [2000, 300]
    assert sorted(listed(where("c"))) == ["notes", "step-00000300", "step-00002000"]


def listed(folder: str) -> list[str]:
    if "://" not in folder:
        return [path.name for path in Path(folder).iterdir()]
    import tensorflow as tf

    return [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]


@pytest.mark.parametrize(("metric", "best"), [("loss", 1), ("val_error_rate", 1), ("accuracy", 3)])
def test_the_best_is_kept_besides_the_newest(metric: str, best: int, where: Where) -> None:
    """The lowest loss or error, the highest of anything else; checkpoints that don't tell it, or are damaged, are none."""
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.3), (5, 0.3)):
        checkpoint(where("c"), step, {metric: value})
    checkpoint(where("c"), 6)
    assert files.best_step(where("c"), metric) == best
    files.prune(where("c"), newest=6, keep=2, best=metric)
    assert files.complete_steps(where("c")) == [6, 5, best]
    put(files.join(files.folder_of(where("c"), best), files.MARKER), b"{")
    assert files.best_step(where("c"), metric) == 5
    assert files.best_step(where("c"), "another") is None


def test_the_marker_is_readable_by_others(tmp_path: Path) -> None:
    """It is JSON with what was given and every file's size, so that another program can check it."""
    marker = json.loads((Path(checkpoint(str(tmp_path), 3)) / files.MARKER).read_text())
    assert marker == {**ABOUT, "step": 3, "files": {name: len(content) for name, content in CONTENT.items()}}


def test_the_directory_is_tried_before_the_training(tmp_path: Path) -> None:
    """A directory that can be written to is made, and nothing is left in it."""
    files.prepare_directory(str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_object_store_is_tried_before_the_training(tmp_path: Path) -> None:
    """A store that can be written to is accepted, and nothing is left in it."""
    pytest.importorskip("tensorflow")
    files.prepare_directory(f"ram://{tmp_path}/c")
    assert listed(f"ram://{tmp_path}/c") == []


def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    """One sentence names the option, the directory, the cause, and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongInputError) as told:
        files.prepare_directory(str(tmp_path / "file" / "c"), "--export")
    assert str(told.value) == f"--export {tmp_path}/file/c can't be written to (Not a directory); choose another directory"


@pytest.mark.parametrize("directory", ["s3://bucket/c", "nothing://c"])
def test_a_store_that_tensorflow_does_not_know_is_refused(directory: str) -> None:
    """TensorFlow's own reason is in the sentence."""
    pytest.importorskip("tensorflow")
    with pytest.raises(WrongInputError, match=f"{directory} can't be written to .*not implemented.*; choose another directory"):
        files.prepare_directory(directory)


SILENT_STORE = """
import sys
from worker_image import checkpoint_files
checkpoint_files.ANSWER_TIME = 2.0
try:
    checkpoint_files.prepare_directory("gs://bucket/checkpoints")
except checkpoint_files.WrongInputError as e:
    sys.exit(str(e))
"""


@pytest.mark.tensorflow
def test_a_store_that_does_not_answer_is_given_up() -> None:
    """A bucket behind a proxy that says nothing costs the time for an answer, and then one sentence; the process can end."""
    pytest.importorskip("tensorflow")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "https_proxy": address, "NO_GCE_CHECK": "true"}
        began = time.monotonic()
        ended = subprocess.run([sys.executable, "-c", SILENT_STORE], env=env, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == (
        "--checkpoint-dir gs://bucket/checkpoints can't be written to (no answer within 2 s); choose another directory"
    )
    assert ended.returncode == 1
    assert time.monotonic() - began < 30
