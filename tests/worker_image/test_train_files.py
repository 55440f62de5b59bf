"""Folders of checkpoints, without TensorFlow."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from worker_image import checkpoint_files as files

CONTENT = {"weights.index": b"i" * 100, "weights.data-00000-of-00001": bytes(range(256)) * 20}


def checkpoint(directory: Path, step: int) -> Path:
    folder = Path(files.folder_of(str(directory), step))
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    files.complete(str(folder), step, {"seed": 0})
    return folder


def test_a_complete_checkpoint_is_whole(tmp_path: Path) -> None:
    """What was declared complete counts, is undamaged, and tells what it is."""
    folder = checkpoint(tmp_path, 7)
    assert files.complete_steps(str(tmp_path)) == [7]
    assert files.damage(str(folder)) == ""
    assert files.read_marker(str(folder))["meaning"] == {"seed": 0}


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A flipped bit anywhere in any file of the checkpoint, or a file cut short at any place, is damage."""
    chance = random.Random(1)
    for step in range(100):
        folder = checkpoint(tmp_path, step)
        name = chance.choice(list(CONTENT))
        content = bytearray(CONTENT[name])
        place = chance.randrange(len(content))
        if step % 2:
            content[place] ^= 1 << chance.randrange(8)
        else:
            del content[place:]
        (folder / name).write_bytes(content)
        assert name in files.damage(str(folder))


@pytest.mark.parametrize("marker", ["", "{", "[]", "{}", '{"files": 3}', '{"files": {"weights.index": {}}}', "\udcff"])
def test_a_marker_that_makes_no_sense_is_damage(marker: str, tmp_path: Path) -> None:
    """Whatever the marker holds, it is told and not raised."""
    folder = checkpoint(tmp_path, 1)
    (folder / files.MARKER).write_bytes(marker.encode(errors="surrogateescape"))
    assert files.damage(str(folder)) == "complete.json can't be read"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A checkpoint of which a file is gone is damaged, and the file is named."""
    folder = checkpoint(tmp_path, 1)
    (folder / "weights.index").unlink()
    assert files.damage(str(folder)) == "weights.index: No such file or directory"


def test_a_death_at_any_moment_leaves_a_checkpoint_or_none(tmp_path: Path) -> None:
    """Of the files that exist while one is written, only those with the marker, which comes last, count."""
    whole = checkpoint(tmp_path / "whole", 2)
    names = [*CONTENT, files.MARKER + ".tmp"]
    for written in range(len(names) + 1):
        folder = Path(files.folder_of(str(tmp_path / str(written)), 2))
        folder.mkdir(parents=True)
        for name in names[:written]:
            shutil.copy(whole / name.replace(".tmp", ""), folder / name)
        assert files.complete_steps(str(folder.parent)) == []


def test_the_newest_are_kept_and_the_unfinished_removed(tmp_path: Path) -> None:
    """Pruning keeps as many as asked for, of the complete ones, and touches nothing that is not a checkpoint."""
    for step in (5, 40, 300, 2000):
        checkpoint(tmp_path, step)
    Path(files.folder_of(str(tmp_path), 9999)).mkdir()
    (tmp_path / "notes").mkdir()
    files.prune(str(tmp_path), keep=2)
    assert files.complete_steps(str(tmp_path)) == [2000, 300]
    assert len(list(tmp_path.iterdir())) == 3


def test_the_marker_is_readable_by_others(tmp_path: Path) -> None:
    """It is JSON with step, sizes and hashes, so that another program can check it."""
    marker = json.loads((checkpoint(tmp_path, 3) / files.MARKER).read_text())
    assert marker["step"] == 3
    assert {name: entry["size"] for name, entry in marker["files"].items()} == {k: len(v) for k, v in CONTENT.items()}


def test_the_directory_is_tried_before_the_training(tmp_path: Path) -> None:
    """A directory that can be written to is made, and nothing is left in it."""
    files.prepare_directory(str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a" / "b").iterdir()) == []
