"""The metrics of a model over a whole dataset, each example counted once, whatever the number of replicas."""

from __future__ import annotations

from typing import Any, Dict, List

from worker_image import data
from worker_image.strategy import Group


def evaluate(group: Group, model: Any, examples: Any, batch_size: int) -> Dict[str, float]:
    """Every metric that the model was compiled with, and its loss; exact for those that are means over examples.

    The whole batches are shared among the replicas. What remains would be shared unevenly, with nothing at all for some, and the
    mean of nothing is NaN: every replica computes that remainder instead.
    """
    import tensorflow as tf

    names: List[str] = []

    def replica(batch: Any) -> Any:
        return stacked(model.test_step(batch), names)

    def on_all_replicas(batch: Any) -> Any:
        return group.strategy.reduce(tf.distribute.ReduceOp.MEAN, group.strategy.run(replica, args=(batch,)), axis=None)

    step = tf.function(on_all_replicas, reduce_retracing=True)
    global_batch = batch_size * group.replicas
    count = data.size(examples, "test")
    whole = count - count % global_batch
    shared = data.distributable(examples.take(whole).batch(global_batch, drop_remainder=True))
    total = tf.constant(0.0)
    if whole:
        total += whole * _last(step, group.strategy.experimental_distribute_dataset(shared), model)
    if whole < count:
        total += (count - whole) * _last(step, examples.skip(whole).batch(batch_size), model)
    return dict(zip(names, (total / count).numpy().tolist()))


def stacked(logs: Dict[str, Any], names: List[str]) -> Any:
    """The scalars among a step's logs as one float32 vector [n], their names left in `names`; n values, but one reduction."""
    import tensorflow as tf

    scalars = {name: tf.cast(value, tf.float32) for name, value in logs.items() if getattr(value, "shape", None) == ()}
    names[:] = sorted(scalars)
    return tf.stack([scalars[name] for name in names])


def _last(step: Any, batches: Any, model: Any) -> Any:
    """Keras's metrics accumulate, so the last step tells of all batches."""
    model.reset_metrics()
    result = None
    for batch in batches:
        result = step(batch)
    return result
