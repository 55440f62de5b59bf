"""Where examples come from: real files of every kind, and what is said of those that can't be read.

MNIST and CIFAR-10 can't be downloaded here: their loading is tested with small files of the same format in Keras's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import datasets, downloads  # noqa: E402 # the import above may skip this file
from worker_image.train_errors import WrongInputError  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Keras's, and a folder to be in."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()  # TensorFlow writes there too
    folder = tmp_path / "keras" / "datasets"
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def refused(*parts: str) -> Iterator[None]:
    """One sentence, which has these parts."""
    with pytest.raises(WrongInputError) as raised:
        yield
    said = str(raised.value)
    assert "\n" not in said
    for part in parts:
        assert part in said, said


def pairs(dataset: Any) -> list[tuple[Any, Any]]:
    return list(dataset.as_numpy_iterator())


# What Keras's cache holds


def mnist_file(path: Path, count: int = 20) -> None:
    images = np.arange(count * 28 * 28, dtype="uint8").reshape(count, 28, 28)
    labels = (np.arange(count) % 10).astype("uint8")
    np.savez(path, x_train=images, y_train=labels, x_test=images[:5], y_test=labels[:5])


def test_mnist_is_read_from_the_cache(cache: Path) -> None:
    """A mnist.npz that is there is all that is needed; pixels come as 0..1, labels as int64."""
    mnist_file(cache / "mnist.npz")
    train, test = pairs(datasets.mnist("train")), pairs(datasets.mnist("test"))
    assert (len(train), len(test)) == (20, 5)
    image, label = train[7]
    assert (image.shape, image.dtype, label, label.dtype) == ((28, 28), np.float32, 7, np.int64)
    assert image.max() == 1.0


def python2_batch(data: Any, labels: list[int]) -> bytes:
    """As Python 2 pickled the real ones, opcode by opcode: {"data": a uint8 array [n, 3072], "labels": [...]}."""
    shape = b"K" + bytes([len(data)]) + b"M\x00\x0c\x86"
    of_bytes = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    content = b"T" + data.nbytes.to_bytes(4, "little") + data.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + of_bytes + b"\x89" + content + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def cifar_file(path: Path, batch: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(batch)
            archive.addfile(member, io.BytesIO(batch))


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py.tar.gz", "cifar-10-batches-py-target_archive"])
def test_cifar10_is_read_from_the_cache(cache: Path, name: str) -> None:
    """The archive under its own name, or as Keras 2 or 3 left it; the planes of colour become channels."""
    cifar_file(cache / name, python2_batch(np.repeat(np.arange(4 * 3, dtype="uint8"), 1024).reshape(4, 3072), [3, 1, 4, 1]))
    train, test = pairs(datasets.cifar10("train")), pairs(datasets.cifar10("test"))
    assert (len(train), len(test)) == (20, 4)
    assert [label for _, label in test] == [3, 1, 4, 1]
    np.testing.assert_allclose(test[1][0], np.broadcast_to(np.array([3, 4, 5], "float32") / 255, (32, 32, 3)))


def test_an_archive_runs_no_code(cache: Path) -> None:
    """CIFAR-10 comes as pickles: those that are more than arrays are refused."""
    cifar_file(cache / "cifar-10-python.tar.gz", pickle.dumps(Path("x")))
    with refused("cifar-10-python.tar.gz is no", "is not allowed", "delete it"):
        datasets.cifar10("train")


@pytest.mark.parametrize("name", ["mnist.npz", "cifar-10-python.tar.gz"])
def test_a_download_that_was_cut_off_is_told(cache: Path, name: str) -> None:
    """Half a file, as a killed process leaves it, is named and not taken."""
    whole = cache / "whole"
    mnist_file(whole.with_suffix(".npz")) if name == "mnist.npz" else cifar_file(whole, python2_batch(np.zeros((1, 3072), "uint8"), [1]))
    content = next(cache.glob("whole*")).read_bytes()
    (cache / name).write_bytes(content[: len(content) // 2])
    with refused(str(cache / name), "not all of"):
        (datasets.mnist if name == "mnist.npz" else datasets.cifar10)("train")


# Downloads


@pytest.mark.parametrize(("load", "file"), [(datasets.mnist, "mnist.npz"), (datasets.cifar10, "cifar-10-python.tar.gz")])
def test_without_a_network_it_says_where_to_put_the_file(load: Any, file: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such host: one sentence with the address, the file and the folder, and nothing left behind."""
    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)  # as here, also where there is a network
    with refused(f"{file} is not in {cache}", "https://", "Name or service not known", "KERAS_HOME"):
        load("train")
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def no_such_host(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_network_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that swallows everything does not hold up the start for minutes."""
    monkeypatch.setattr(downloads, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with refused("no answer within 0 s"):
            downloads.cached(["x"], f"http://127.0.0.1:{silent.getsockname()[1]}/x", "")
    assert time.monotonic() - began < 5


class Server(http.server.BaseHTTPRequestHandler):
    """Gives CONTENT for every path, once it was asked and waited a little; counts what it is asked for."""

    content = b"dataset" * 1000
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        time.sleep(0.3)  # long enough for the other process to find that the file is not there yet
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # http.server's name
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a file."""
    Server.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/shared.bin"
        server.shutdown()
        thread.join()


def test_workers_that_ask_at_once_download_once(url: str, cache: Path) -> None:
    """Two processes, one request; both get the whole file."""
    command = [sys.executable, ROOT / "tests/programs/data_asks_at_once.py", url, hashlib.sha256(Server.content).hexdigest()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as one, subprocess.Popen(command, env=environment, **pipes) as two:
        assert [process.stdout.readline() for process in (one, two)] == ["ready\n", "ready\n"]
        for process in (one, two):
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate()[0].splitlines()[-1] for process in (one, two)]
    assert said == [str(cache / "shared.bin")] * 2
    assert Server.asked == ["/shared.bin"]
    assert (cache / "shared.bin").read_bytes() == Server.content


def test_what_is_not_the_file_is_not_kept(url: str, cache: Path) -> None:
    """A page that some proxy sends instead of the file fails by its checksum, and is not there the next time."""
    with refused("what came has SHA-256"):
        downloads.cached(["shared.bin"], url, "0" * 64)
    assert not (cache / "shared.bin").exists()


def test_a_lock_that_is_held_for_ever_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for another process's download says for which file's sake, in the end."""
    monkeypatch.setattr(downloads, "LOCK_SECONDS", 0.2)
    with downloads.alone("mnist.npz"), refused(f"another process has held {cache}/.mnist.npz.lock for 0 s"), downloads.alone("mnist.npz"):
        pass


def test_a_home_that_can_not_be_written_to_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with Keras, the temporary folder takes its place; and where that fails too, one sentence names both."""
    monkeypatch.setenv("KERAS_HOME", "/proc/none")
    with downloads.alone("x"):
        assert (tmp_path / "tmp" / ".keras" / "datasets" / ".x.lock").exists()
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    with refused("/proc/none/datasets or /proc/none/.keras/datasets", "set KERAS_HOME"), downloads.alone("x"):
        pass


# tensorflow-datasets


def test_tfds_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is named, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with refused("tfds('mnist') needs tensorflow_datasets, which is not installed", "pip install tensorflow-datasets"):
        datasets.tfds("mnist", "train")


def test_tfds_gives_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its datasets are asked for as pairs. tensorflow-datasets is not installed here: a stand-in takes the call."""
    asked: list[Any] = []
    stand_in: Any = types.ModuleType("tensorflow_datasets")
    stand_in.load = lambda name, **options: asked.append((name, options)) or tf.data.Dataset.range(3)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", stand_in)
    assert pairs(datasets.tfds("glue/cola", "train")) == [0, 1, 2]
    assert asked == [("glue/cola", {"split": "train", "as_supervised": True})]


def test_tfds_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises becomes one sentence with its first line."""
    stand_in: Any = types.ModuleType("tensorflow_datasets")
    stand_in.load = lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route\nto the host"))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", stand_in)
    with refused("tfds('x', 'train') can't be loaded (ConnectionError: no route)", "TFDS_DATA_DIR"):
        datasets.tfds("x", "train")


# .npz


def test_the_arrays_of_a_file_are_taken_as_they_are() -> None:
    """Shapes and types stay."""
    np.savez("a.npz", x_train=np.ones((3, 2), "float16"), y_train=np.zeros((3, 1), "int8"), x_test=np.ones((1, 2)), y_test=[5])
    x, y = pairs(datasets.npz("a.npz", "train"))[0]
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((2,), np.float16, (1,), np.int8)
    assert [y for _, y in pairs(datasets.npz("a.npz", "test"))] == [5]


def test_two_arrays_are_split_always_in_the_same_way() -> None:
    """Of x and y a fifth is for the test: none of it in the training, none missing, the pairs together."""
    np.savez("a.npz", x=np.arange(103), y=-np.arange(103))
    train, test = pairs(datasets.npz("a.npz", "train")), pairs(datasets.npz("a.npz", "test"))
    assert (len(train), len(test)) == (82, 21)
    assert sorted(x for x, _ in train + test) == list(range(103))
    assert all(x == -y for x, y in train + test)
    assert test == pairs(datasets.npz("a.npz", "test"))


BAD_ARRAYS: dict[str, dict[str, Any]] = {
    "has the arrays a, x and lacks y; it needs x_train,": {"a": [1], "x": [1]},
    "has the arrays x_train, y_train and lacks x_test and y_test": {"x_train": [1], "y_train": [1]},
    "has the arrays (none) and lacks x_test and y_test": {},
    "has 3 rows in x and 2 in y": {"x": [1, 2, 3], "y": [1, 2]},
    "y in bad.npz is a single number": {"x": [1], "y": 1},
    "y in bad.npz holds Python objects": {"x": [1], "y": np.array([None])},
}


@pytest.mark.parametrize("sentence", list(BAD_ARRAYS))
def test_arrays_that_are_no_dataset_are_told(sentence: str) -> None:
    """What is there and what is lacking."""
    np.savez("bad.npz", **BAD_ARRAYS[sentence])
    with refused(sentence, "bad.npz"):
        datasets.npz("bad.npz", "test")


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"PK\x03\x04 and then something else"])
def test_what_is_no_npz_is_told(content: bytes) -> None:
    """Also an empty file, and one that begins like it."""
    Path("bad.npz").write_bytes(content)
    with refused("bad.npz is no .npz file, or not all of one"):
        datasets.npz("bad.npz", "train")


def test_a_damaged_array_is_told() -> None:
    """A changed byte within is found by the file's own checksums."""
    np.savez("bad.npz", x=np.zeros(1000), y=np.zeros(1000))
    content = bytearray(Path("bad.npz").read_bytes())
    content[500] ^= 1
    Path("bad.npz").write_bytes(content)
    with refused("x in bad.npz is damaged"):
        datasets.npz("bad.npz", "train")


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    """With the folder from which a relative path was seen; a folder and a single array are no such file either."""
    np.save("one.npy", np.zeros(3))
    with refused(f"none.npz can't be read (No such file or directory), seen from {tmp_path}"):
        datasets.npz("none.npz", "train")
    with refused("keras can't be read (Is a directory)"):
        datasets.npz("keras", "train")
    with refused("one.npy is a single array", "numpy.savez"):
        datasets.npz("one.npy", "train")


@pytest.mark.parametrize("source", ["mnist", "cifar10", "npz", "images"])
def test_other_splits_are_refused(source: str) -> None:
    """There are "train" and "test"."""
    arguments: dict[str, list[Any]] = {"npz": ["a.npz", "valid"], "images": ["a", "valid", (8, 8)]}
    with refused("there is no split 'valid'"):
        getattr(datasets, source)(*arguments.get(source, ["valid"]))


# TFRecord files


def write_records(path: str, numbers: Any) -> None:
    with tf.io.TFRecordWriter(path, "GZIP" if path.endswith(".gz") else "") as file:
        for number in numbers:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            file.write(tf.train.Example(features=tf.train.Features(feature={"n": feature})).SerializeToString())


NUMBER = {"n": tf.io.FixedLenFeature([], tf.int64)}


def records(pattern: str) -> Any:
    return datasets.tfrecords(pattern, lambda example: (example["n"], -example["n"]), NUMBER)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_records_of_many_files_come_in_one_order(ending: str) -> None:
    """Every record once, from all files, in the same order each time."""
    for file in range(20):
        write_records(f"train-{file:02}.tfrecord{ending}", range(file * 10, file * 10 + 10))
    write_records(f"test-00.tfrecord{ending}", [1000])
    read = pairs(records(f"train-*.tfrecord{ending}"))
    assert sorted(x for x, _ in read) == list(range(200))
    assert read == pairs(records(f"train-*.tfrecord{ending}"))
    assert [x // 10 for x, _ in read[:8]] == list(range(8)), "the files are not read side by side"


def test_workers_can_share_out_the_files() -> None:
    """TensorFlow finds the files in the graph: two workers read half of them each."""
    from tensorflow.python.distribute import input_ops

    for file in range(4):
        write_records(f"{file}.tfrecord", [file] * 5)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    dataset = records("*.tfrecord").with_options(options)
    shares = [pairs(input_ops.auto_shard_dataset(dataset, 2, worker)) for worker in range(2)]
    assert [sorted({x for x, _ in share}) for share in shares] == [[0, 2], [1, 3]]
    assert [len(share) for share in shares] == [10, 10]


def test_records_can_be_parsed_by_ones_own_function() -> None:
    """Without features, parse gets the bytes themselves."""
    with tf.io.TFRecordWriter("a.tfrecord") as file:
        file.write(b"some text")
    read = pairs(datasets.tfrecords("a.tfrecord", lambda record: (record, tf.strings.length(record))))
    assert read == [(b"some text", 9)]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def other_kind(path: Path) -> None:
    path.write_bytes(b"a text file, which is no TFRecord file at all\n")


def other_features(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as file:
        file.write(tf.train.Example().SerializeToString())


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[14] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "name", "sentence"),
    [
        (cut_off, "1.tfrecord", "1.tfrecord is cut off after byte 120 (147 bytes in all)"),
        (other_kind, "1.tfrecord", "1.tfrecord is no TFRecord file"),
        (other_features, "0.tfrecord", "0.tfrecord can't be read ("),
        (changed, "0.tfrecord", "0.tfrecord can't be read ("),
        (other_kind, "0.tfrecord.gz", "0.tfrecord.gz can't be read (inflate() failed"),
    ],
)
def test_files_that_are_no_records_are_told(harm: Any, name: str, sentence: str) -> None:
    """By their names, before the training begins."""
    ending = name[1:]
    for file in range(3):
        write_records(f"{file}{ending}", range(5))
    harm(Path(name))
    with refused(sentence):
        records(f"*{ending}")


def test_a_pattern_without_files_is_told(tmp_path: Path) -> None:
    """And one that mixes compressed files with others."""
    with refused(f"no file matches data/*.tfrecord, seen from {tmp_path}"):
        records("data/*.tfrecord")
    write_records("0.tfrecord", [1])
    write_records("1.tfrecord.gz", [1])
    with refused("*.tfrecord* matches files that end in .gz and others that don't"):
        records("*.tfrecord*")


# Folders of images


def image(path: str, colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pixels = tf.constant(np.broadcast_to(np.array(colour, "uint8"), (*size, 3)))
    encode = tf.io.encode_png if path.endswith("png") else tf.io.encode_jpeg
    tf.io.write_file(path, encode(pixels))


@pytest.fixture
def photos() -> str:
    """A folder with a training and a test part."""
    image("photos/train/sea/1.png", (0, 0, 255))
    image("photos/train/sea/2.JPEG", (0, 0, 255), (10, 10))
    image("photos/train/grass/1.png", (0, 255, 0))
    image("photos/test/grass/1.png", (0, 255, 0))
    Path("photos/train/.cache").mkdir()
    Path("photos/train/sea/notes.txt").write_text("no image")
    return "photos"


def test_a_folder_of_images_is_read(photos: str) -> None:
    """All in one size and 0..1, labelled by the order of the classes' names; other files and hidden folders are left alone."""
    assert datasets.classes(photos) == ["grass", "sea"]
    train = pairs(datasets.images(photos, "train", (8, 8)))
    assert [label for _, label in train] == [0, 1, 1]
    for pixels, label in train:
        assert (pixels.shape, pixels.dtype) == ((8, 8, 3), np.float32)
        np.testing.assert_allclose(pixels[4, 4], [(0, 1, 0), (0, 0, 1)][label], atol=0.02)
    assert datasets.images(photos, "train", (8, 8)).element_spec[0].shape == (8, 8, 3)
    assert pairs(datasets.images(photos, "test", (5, 5), channels=1))[0][0].shape == (5, 5, 1)


def test_a_folder_without_parts_is_split() -> None:
    """A fifth of each class is for the test; another image changes the sides of hardly any."""
    for number in range(20):
        image(f"a/x/{number}.png", (number, 0, 0))
        image(f"a/y/{number}.png", (number, 0, 1))
    image("a/single/1.png", (0, 0, 2))
    sides = {split: [tuple(np.rint(x[0, 0] * 255)) for x, _ in pairs(datasets.images("a", split, (2, 2)))] for split in ("train", "test")}
    assert (len(sides["train"]), len(sides["test"])) == (33, 8)
    assert not set(sides["train"]) & set(sides["test"])
    before = {tuple(np.rint(x[0, 0] * 255)) for x, _ in pairs(datasets.images("a", "test", (2, 2)))}
    image("a/x/another.png", (99, 0, 0))
    after = {tuple(np.rint(x[0, 0] * 255)) for x, _ in pairs(datasets.images("a", "test", (2, 2)))}
    assert len(before - after) <= 1


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"\x89PNG\r\n\x1a\n and no more", b"half"])
def test_an_image_that_can_not_be_decoded_is_told(photos: str, content: bytes) -> None:
    """The file is named before the training begins: an empty one, a page, the beginning of an image."""
    bad = Path(photos, "train/sea/2.JPEG")
    bad.write_bytes(bad.read_bytes()[:-100] if content == b"half" else content)
    with refused("photos/train/sea/2.JPEG can't be decoded", "replace it or delete it"):
        datasets.images(photos, "train", (8, 8))


def test_an_image_with_more_behind_it_is_taken(photos: str) -> None:
    """What only looks damaged is decoded to make sure."""
    with Path(photos, "train/sea/1.png").open("ab") as file:
        file.write(b"\0" * 100)
    assert len(pairs(datasets.images(photos, "train", (8, 8)))) == 3


def test_folders_that_hold_no_images_are_told(photos: str, tmp_path: Path) -> None:
    """None there, no classes, no images, one part without the other, another class."""
    with refused(f"there is no folder none, seen from {tmp_path}"):
        datasets.images("none", "train", (8, 8))
    Path("empty").mkdir()
    with refused("empty has no folders", "empty/cat/1.png"):
        datasets.images("empty", "train", (8, 8))
    Path("empty/cat").mkdir()
    with refused("empty has no images for the split 'train'", "cat"):
        datasets.images("empty", "train", (8, 8))
    image("half/train/cat/1.png", (0, 0, 0))
    with refused("half has a folder train and none test"):
        datasets.images("half", "test", (8, 8))
    image("photos/test/desert/1.png", (255, 255, 0))
    with refused("photos/test has the class desert, which photos/train lacks"):
        datasets.images(photos, "test", (8, 8))
