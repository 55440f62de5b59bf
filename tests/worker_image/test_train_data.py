"""The order of the examples, and how workers share them out; the workers here are one process, and only the strategy is a stand-in."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from worker_image import data, sources  # noqa: E402 # the import above may skip this file
from worker_image.data import TrainingSet  # noqa: E402
from worker_image.sources import Source  # noqa: E402
from worker_image.train_errors import WrongInputError  # noqa: E402


class OneOf:
    """One worker of a group of which the others are asked by nobody: what they would say is given."""

    def __init__(
        self, workers: int = 1, index: int = 0, local_replicas: int = 1, answers: Callable[[int], list[int]] | None = None
    ) -> None:
        self.workers, self.index, self.local_replicas = workers, index, local_replicas
        self.replicas = workers * local_replicas
        self.strategy = self
        self.gather = answers or (lambda value: [value] * workers)

    def distribute_datasets_from_function(self, make: Callable[[Any], Any]) -> Any:
        return make(None)


def numbers(count: int) -> Any:
    return tf.data.Dataset.range(count).map(lambda i: (i, -i))


def source(count: int, cache: str = "auto") -> Source:
    return sources.source(lambda _: numbers(count), "train", OneOf(), cache)  # type: ignore[arg-type]


def cut(count: int, batch: int = 4, seed: int = 0, drop: bool = True, cache: str = "auto", group: OneOf | None = None) -> TrainingSet:
    return TrainingSet(source(count, cache), group or OneOf(), batch, seed, drop)  # type: ignore[arg-type]


def batches(training_set: TrainingSet, first: int, last: int) -> list[Any]:
    """The x of the batches of some steps, counted over all epochs."""
    per_epoch = training_set.steps(0)
    epoch, begun = divmod(first, per_epoch)
    found = training_set.batches(epoch, training_set.consumed(0, begun), -(-last // per_epoch))
    return [x.numpy().tolist() for x, *_ in itertools.islice(found, last - first)]


@pytest.mark.parametrize("drop", [True, False])
def test_an_epoch_has_each_example_once(drop: bool) -> None:
    """No example comes twice in an epoch, none is lost but what makes no whole step, and the epochs differ in order."""
    per_epoch = 5 if drop else 6
    steps = batches(cut(23, drop=drop), 0, 2 * per_epoch)
    assert [len(batch) for batch in steps] == ([4] * 5 + ([] if drop else [3])) * 2
    first, second = ([example for batch in epoch for example in batch] for epoch in (steps[:per_epoch], steps[per_epoch:]))
    assert len(set(first)) == len(set(second)) == (20 if drop else 23)
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("cache", ["yes", "no"])
def test_any_step_can_be_found_again(cache: str, drop: bool) -> None:
    """From whichever step one starts, the batches are those of an uninterrupted run."""
    training_set = cut(23, cache=cache, drop=drop)
    end = 3 * training_set.steps(0)
    whole = batches(training_set, 0, end)
    for first in range(end):
        assert batches(training_set, first, end) == whole[first:]


def test_the_seed_chooses_the_order() -> None:
    """Another seed gives another order; the same seed, the same, whatever TensorFlow's own seed was before."""
    tf.random.set_seed(0)
    assert batches(cut(23), 0, 5) == batches(cut(23), 0, 5)
    assert batches(cut(23), 0, 5) != batches(cut(23, seed=1), 0, 5)


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 40),
    workers=st.integers(1, 4),
    local=st.integers(1, 3),
    batch=st.integers(1, 4),
    begun=st.integers(0, 5),
    by_position=st.booleans(),
    drawn=st.data(),
)
def test_every_example_counts_once_however_it_is_shared_out(
    count: int, workers: int, local: int, batch: int, begun: int, by_position: bool, drawn: st.DataObject
) -> None:
    """Each worker makes the same steps, no replica is without an example, and the weights give the mean over each step's examples."""
    if by_position:
        shares = [source(count, drawn.draw(st.sampled_from(["yes", "no"])))] * workers
    else:
        counts = tuple(drawn.draw(st.lists(st.integers(1, 12), min_size=workers, max_size=workers)))
        ends = np.cumsum(counts)
        parts = [numbers(int(ends[-1])).skip(int(end - size)).take(size) for end, size in zip(ends, counts, strict=True)]
        shares = [Source(part, False, counts, False, "", sources.first(part, "train")) for part in parts]
        count = int(ends[-1])
    groups = [OneOf(workers, index, local) for index in range(workers)]
    sets = [TrainingSet(own, group, batch, 0, False) for own, group in zip(shares, groups, strict=True)]  # type: ignore[arg-type]
    begun = min(begun, sets[0].steps(0) - 1)
    start, steps = sets[0].consumed(0, begun), sets[0].steps(0) - begun
    streams = [list(itertools.islice(each.batches(0, start, 1), steps * local)) for each in sets]
    seen: Counter[int] = Counter()
    for step in range(steps):
        replicas = [stream[step * local + i] for stream in streams for i in range(local)]
        real: list[int] = []
        mean = 0.0
        for x, _, *weight in replicas:
            assert len(x) >= 1
            weights = weight[0].numpy() if weight else np.ones(len(x))
            mean += float((x.numpy() * weights).mean()) / len(replicas)
            real += [int(value) for value, share in zip(x.numpy(), weights, strict=True) if share > 0]
        assert mean == pytest.approx(np.mean(real), rel=1e-5, abs=1e-5)
        seen.update(real)
        consumed = sets[0].consumed(start, step + 1) - sets[0].consumed(start, step)
        assert consumed == len(real) <= batch * local * workers
    assert set(seen.values()) == {1}
    assert len(seen) == count - start


def test_a_batch_is_the_same_whoever_shares_it() -> None:
    """Three workers make the steps that one would: the same examples in each."""
    alone = batches(cut(51, batch=6, drop=False), 0, 18)
    streams = [batches(cut(51, batch=2, drop=False, group=OneOf(3, index)), 0, 18) for index in range(3)]
    for together, parts in zip(alone, zip(*streams, strict=True), strict=True):
        assert sorted(together) == sorted(example for part in parts for example in part)


def test_a_dataset_of_unknown_size_is_counted() -> None:
    """A generator or filter does not know its size: it is read once."""
    found = sources.source(lambda _: numbers(10).filter(lambda i, _: i % 3 == 0), "train", OneOf(), "auto")  # type: ignore[arg-type]
    assert found.count == 4


def written(folder: Path, files: int, each: int = 5) -> list[str]:
    paths = [str(folder / f"part-{i}.tfrecord") for i in range(files)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for j in range(each + i):
                writer.write(str(100 * i + j).encode())
    return paths


def parsed(records: Any) -> Any:
    return records.map(lambda record: (tf.strings.to_number(record), 0))


def read(paths: list[str]) -> Any:
    return parsed(tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset))


READERS = [read, lambda paths: parsed(tf.data.TFRecordDataset(paths)), lambda paths: parsed(tf.data.TFRecordDataset(paths).shuffle(9))]


@pytest.mark.parametrize("read", READERS)
def test_enough_files_are_shared_out_by_file(read: Callable[[list[str]], Any], tmp_path: Path) -> None:
    """Each worker reads its own files, all of them are read, and unequal numbers make equal numbers of steps."""
    paths = written(tmp_path, 3)
    shares = [sources.source(lambda _: read(paths), "train", OneOf(2, index), "auto") for index in range(2)]  # type: ignore[arg-type]
    assert {each.reason for each in shares} == {"each worker reads its own files"}
    own = [sorted(int(x) for x, _ in each.examples) for each in shares]
    assert own[0] == [0, 1, 2, 3, 4, 200, 201, 202, 203, 204, 205, 206]
    assert own[1] == [100, 101, 102, 103, 104, 105]


def test_fewer_files_than_workers_are_read_by_all(tmp_path: Path) -> None:
    """Then every worker takes its examples from all, and one is told why."""
    paths = written(tmp_path, 2)
    found = sources.source(lambda _: read(paths), "train", OneOf(3), "auto")  # type: ignore[arg-type]
    assert found.by_position
    assert found.reason == "every worker reads all of it, as there are fewer files (2) than workers (3)"


def test_what_is_in_memory_is_read_by_all() -> None:
    """Arrays and generators have no files."""
    found = sources.source(lambda _: numbers(9), "train", OneOf(3), "auto")  # type: ignore[arg-type]
    assert "as it comes from memory or a generator" in found.reason
    found = sources.source(lambda _: numbers(9), "train", OneOf(3, answers=lambda _: [0, 1, 0]), "auto")  # type: ignore[arg-type]
    assert found.by_position


def test_a_task_may_share_out_its_data_itself() -> None:
    """build_dataset(split, context) gives each worker its own part, in its own way."""

    def build(_: str, context: Any) -> Any:
        return numbers(10).shard(context.num_input_pipelines, context.input_pipeline_id)

    found = sources.source(build, "train", OneOf(2, 1, answers=lambda own: [own, own]), "auto")  # type: ignore[arg-type]
    assert found.counts == (5, 5)
    assert found.in_memory
    assert found.examples[0].numpy().tolist() == [1, 3, 5, 7, 9]
    assert sources.size(sources.everything(build, "test"), "test") == 10
    with pytest.raises(WrongInputError, match=r"gives the workers \[5, 0\] examples; give each of them some"):
        sources.source(build, "train", OneOf(2, 1, answers=lambda own: [own, 0]), "auto")  # type: ignore[arg-type]


def test_parts_are_in_memory_on_all_workers_or_on_none() -> None:
    """A part that fits where another one doesn't is a stream too: the order of what is in memory is another kind."""
    said = iter([[10, 99], [1, 0]])
    found = sources.source(lambda _, context: numbers(10), "train", OneOf(2, 0, answers=lambda _: next(said)), "auto")  # type: ignore[arg-type]
    assert not found.in_memory
    assert [int(x) for x, _ in found.examples] == list(range(10))


def test_what_is_known_to_be_small_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise, examples are read once where they are few, and anew in each epoch where they are many or unknown."""

    def times_read(count: int, cache: str, shape: tuple[int | None] = (1000,)) -> int:
        reads = 0

        def generate() -> Any:
            nonlocal reads
            reads += 1
            for _ in range(count):
                yield np.zeros(1000, np.float32), 0

        examples = tf.data.Dataset.from_generator(
            generate, output_signature=(tf.TensorSpec(shape, tf.float32), tf.TensorSpec((), tf.int32))
        )
        examples = examples.apply(tf.data.experimental.assert_cardinality(count))
        found = sources.source(lambda _: examples, "train", OneOf(), cache)  # type: ignore[arg-type]
        reads = 0
        training_set = TrainingSet(found, OneOf(), 5, 0, False)  # type: ignore[arg-type]
        for epoch in range(3):
            list(itertools.islice(training_set.batches(epoch, 0, epoch + 1), training_set.steps(0)))
        return reads

    monkeypatch.setattr(sources, "MEMORY", 41_000)
    assert times_read(10, "auto") == 0
    assert times_read(11, "auto") == 3
    assert times_read(10, "auto", (None,)) == 3
    assert times_read(10, "no") == 3
    assert times_read(11, "yes") == 0
    assert times_read(11, "yes", (None,)) == 1


def test_a_tpu_likes_multiples() -> None:
    """A batch that fills a TPU's units is no word worth."""
    assert data.advice(8, 3) == data.advice(32, 4) == data.advice(1, 128) == ""
    assert "a batch of 12 per replica (48 in all)" in data.advice(12, 4)
