"""The order of the examples."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from worker_image import data  # noqa: E402 # the import above may skip this file


def batches(first: int, last: int, seed: int = 0, cache: bool = True) -> list[Any]:
    examples = tf.data.Dataset.range(23).map(lambda i: (i, -i))
    training_set = data.training_set(examples, global_batch=4, seed=seed, cache=cache)
    assert training_set.steps_per_epoch == 5
    return [x.tolist() for x, _ in training_set.batches(first, last).as_numpy_iterator()]


def test_an_epoch_has_each_example_once() -> None:
    """No example comes twice in an epoch, every batch is whole, and the epochs differ in order."""
    steps = batches(0, 10)
    assert [len(batch) for batch in steps] == [4] * 10
    first, second = ([example for batch in epoch for example in batch] for epoch in (steps[:5], steps[5:]))
    assert len(set(first)) == len(set(second)) == 20
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("cache", [True, False])
def test_any_step_can_be_found_again(cache: bool) -> None:
    """From whichever step one starts, the batches are those of an uninterrupted run."""
    whole = batches(0, 15, cache=cache)
    for first in range(15):
        assert batches(first, 15, cache=cache) == whole[first:]
    assert batches(3, 7) == whole[3:7]


def test_the_seed_chooses_the_order() -> None:
    """Another seed gives another order; the same seed, the same, whatever TensorFlow's own seed was before."""
    tf.random.set_seed(0)
    assert batches(0, 5) == batches(0, 5)
    assert batches(0, 5) != batches(0, 5, seed=1)


def test_a_dataset_of_unknown_size_is_counted() -> None:
    """A generator or filter does not know its size: it is read once."""
    examples = tf.data.Dataset.range(10).filter(lambda i: i % 3 == 0)
    assert data.training_set(examples, global_batch=2, seed=0, cache=True).count == 4


def test_workers_share_out_batches_not_files() -> None:
    """With shards of files the workers could have unequal numbers of steps, and wait for each other for ever."""
    options = data.distributable(tf.data.Dataset.range(4).batch(2)).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA
