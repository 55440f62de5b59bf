"""What is in the files that datasets are read from, and what is wrong with them, in one sentence that names the file."""

from __future__ import annotations

import os
import pickle
import tarfile
import zipfile
import zlib
from typing import Any, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from worker_image.train_errors import WrongInputError

TEST_PART = 5  # where the data have no splits of their own, every fifth example is for the test
CHECKED_BYTES = 1 << 30  # of TFRecord files, whose framing is followed before the training begins
CHECKED_IMAGES = 10_000  # whose first and last bytes are looked at before the training begins
# the last two are Keras 3's and Keras 2's names for it
CIFAR_NAMES = ("cifar-10-python.tar.gz", "cifar-10-batches-py-target_archive", "cifar-10-batches-py.tar.gz")
_CIFAR_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


def check_split(split: str) -> None:
    """Raises WrongInputError for other splits than "train" and "test"."""
    if split not in ("train", "test"):
        raise WrongInputError(f'there is no split {split!r}; ask for "train" or "test"')


def _test_rows(count: int) -> Any:
    """Which rows are for the test, bool [count]; a fixed shuffle, because files often go class by class."""
    chosen: Any = np.zeros(count, bool)
    chosen[np.random.default_rng(0).permutation(count)[: -(-count // TEST_PART)]] = True
    return chosen


# .npz


def npz_arrays(path: str, split: str) -> Tuple[Any, Any]:
    """The rows x and y of a split. Raises WrongInputError."""
    try:
        with open(path, "rb") as file:  # numpy would leave a file open that is no .npz
            return _npz_split(_read_npz(file, path), path, split)
    except OSError as e:
        raise WrongInputError(f"{path} can't be read ({e.strerror}), seen from {os.getcwd()}; give the path of a .npz file") from e


def _npz_split(arrays: Any, path: str, split: str) -> Tuple[Any, Any]:
    names = [f"x_{split}", f"y_{split}"] if f"x_{split}" in arrays or "x" not in arrays else ["x", "y"]
    lacking = [name for name in names if name not in arrays]
    if lacking:
        raise WrongInputError(
            f"{path} has the arrays {', '.join(arrays) or '(none)'} and lacks {' and '.join(lacking)}; "
            "it needs x_train, y_train, x_test and y_test, or x and y"
        )
    x, y = (_array(arrays, name, path) for name in names)
    if len(x) != len(y):
        raise WrongInputError(f"{path} has {len(x)} rows in {names[0]} and {len(y)} in {names[1]}; each example needs one of both")
    if names == ["x", "y"]:
        rows = _test_rows(len(x)) == (split == "test")
        x, y = x[rows], y[rows]
    return x, y


def _read_npz(file: Any, path: str) -> Any:
    try:
        arrays = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as e:
        raise WrongInputError(f"{path} is no .npz file, or not all of one; write it anew with numpy.savez") from e
    if not hasattr(arrays, "files"):
        raise WrongInputError(f"{path} is a single array (.npy); write both in one file with numpy.savez(path, x=…, y=…)")
    return arrays


def _array(arrays: Any, name: str, path: str) -> Any:
    try:
        array = arrays[name]
    except ValueError as e:
        raise WrongInputError(f"{name} in {path} holds Python objects, which are not read; save it as an array of numbers") from e
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise WrongInputError(f"{name} in {path} is damaged; write the file anew, or delete it where it was a download") from e
    if array.ndim == 0:
        raise WrongInputError(f"{name} in {path} is a single number; it needs one row for each example")
    return array


# CIFAR-10


class _ArraysOnly(pickle.Unpickler):
    """The archive holds pickles, which could run any code: only what an array is made of is allowed."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.split(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return allowed[name]


def cifar_arrays(path: str, split: str) -> Tuple[Any, Any]:
    """Images [n, 32, 32, 3] and labels [n] of the archive, whose rows are the red, the green and the blue plane one after the other."""
    try:
        with tarfile.open(path) as archive:
            batches = [_cifar_batch(archive, f"cifar-10-batches-py/{name}") for name in _CIFAR_BATCHES[split]]
        x, y = (np.concatenate([batch[key] for batch in batches]) for key in (b"data", b"labels"))
        return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y
    except (OSError, EOFError, KeyError, ValueError, zlib.error, tarfile.TarError, pickle.UnpicklingError) as e:
        raise WrongInputError(f"{path} is no {CIFAR_NAMES[0]}, or not all of it ({e}); delete it, or put a whole one there") from e


def _cifar_batch(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is no file")
    return _ArraysOnly(file, encoding="bytes").load()  # Python 2 wrote them


# TFRecord files


def compression(pattern: str, files: Sequence[str]) -> str:
    """What tf.data.TFRecordDataset calls it: "GZIP" or ""."""
    compressed = {path.endswith(".gz") for path in files}
    if len(compressed) > 1:
        raise WrongInputError(f"{pattern} matches files that end in .gz and others that don't; choose one kind")
    return "GZIP" if compressed == {True} else ""


def check_framing(files: Sequence[str]) -> None:
    """Raises WrongInputError for the first file that is cut off, or of another kind, within the first CHECKED_BYTES of all."""
    checked = 0
    for path in files:
        if checked >= CHECKED_BYTES:
            return
        checked += os.path.getsize(path)
        end = _last_whole_record(path)
        if end < os.path.getsize(path):
            fault = f"is cut off after byte {end}" if end else "is no TFRecord file, or cut off in its first record"
            raise WrongInputError(f"{path} {fault} ({os.path.getsize(path)} bytes in all); write it anew, or leave it out of the pattern")


def _last_whole_record(path: str) -> int:
    """Where it ends, in bytes. A record is its length (8 bytes), a checksum (4), its data, and a checksum (4).

    Source: https://www.tensorflow.org/tutorials/load_data/tfrecord. The checksums are TensorFlow's to verify, when it reads.
    """
    size, end = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while size - end >= 16:
            following = end + 16 + int.from_bytes(file.read(8), "little")
            if following > size:
                break
            file.seek(following)
            end = following
    return end


# Folders of images


def classes(folder: str) -> List[str]:
    """The names of the folders of the training's images, sorted."""
    return _folders_in(_split_folder(folder, "train"))


def image_files(folder: str, split: str) -> Tuple[List[str], List[int]]:
    """Paths and labels of a split, class by class. Raises WrongInputError."""
    below = _split_folder(folder, split)
    names = classes(folder)
    if not names:
        raise WrongInputError(f"{below} has no folders; put the images of each class into one of its own, such as {below}/cat/1.png")
    unknown = sorted(set(_folders_in(below)) - set(names))
    if unknown:
        raise WrongInputError(f"{below} has the class {unknown[0]}, which {_split_folder(folder, 'train')} lacks; both need the same")
    paths: List[str] = []
    labels: List[int] = []
    for label, name in enumerate(names):
        found = _images_in(os.path.join(below, name), split if below == folder else "")
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise WrongInputError(
            f"{below} has no images for the split {split!r} ({', '.join(_IMAGES)}) in {', '.join(names)}; check the folder"
        )
    return paths, labels


def _split_folder(folder: str, split: str) -> str:
    """FOLDER/train or FOLDER/test where these are, else the folder itself."""
    if not tf.io.gfile.isdir(folder):
        raise WrongInputError(f"there is no folder {folder}, seen from {os.getcwd()}; give one that holds a folder for each class")
    there = [name for name in ("train", "test") if tf.io.gfile.isdir(os.path.join(folder, name))]
    if not there:
        return folder
    if split not in there:
        raise WrongInputError(f"{folder} has a folder {there[0]} and none {split}; make it, or put the classes into {folder} itself")
    return os.path.join(folder, split)


def _folders_in(folder: str) -> List[str]:
    names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    return [name for name in names if not name.startswith(".") and tf.io.gfile.isdir(os.path.join(folder, name))]


def _images_in(folder: str, split: str) -> List[str]:
    """The image files of a folder, sorted; with a split, those of it."""
    found = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    names = [name for name in found if name.lower().endswith(_IMAGES) and not name.startswith(".")]
    # by a hash of the names, so that hardly any image changes sides when others are added
    ranked = sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))
    tested = len(names) // TEST_PART or int(len(names) > 1)
    chosen = {"test": ranked[:tested], "train": ranked[tested:]}.get(split, ranked)
    return [os.path.join(folder, name) for name in sorted(chosen)]


def check_images(paths: Sequence[str]) -> None:
    """Raises WrongInputError for the first file that can't be decoded, of those that look unlike whole images; only local ones."""
    for path in [path for path in paths[:CHECKED_IMAGES] if os.path.isfile(path)]:
        if _looks_whole(path):
            continue
        try:
            tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
        except tf.errors.InvalidArgumentError as e:
            raise WrongInputError(f"{path} can't be decoded as an image ({os.path.getsize(path)} bytes); replace it or delete it") from e


def _looks_whole(path: str) -> bool:
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(max(0, os.path.getsize(path) - 32))
        end = file.read()
    return (start.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in end) or (start == b"\x89PNG\r\n\x1a\n" and b"IEND" in end)
