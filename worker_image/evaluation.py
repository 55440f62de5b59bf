"""The metrics of a model over a whole dataset, each example counted once, whatever the number of replicas."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from worker_image import data, sources
from worker_image.data import plain
from worker_image.strategies import Group
from worker_image.tasks import is_keras_2


class Evaluation:
    """Every metric that the model was compiled with, and its loss; exact for those that are means over examples.

    The whole batches are shared among the replicas. What remains would be shared unevenly, with nothing at all for some, and the
    mean of nothing is NaN: every replica computes that remainder instead.
    """

    def __init__(self, group: Group, model: Any, keras: Any, examples: Any, batch: int) -> None:
        self._group = group
        self._count = sources.size(examples, "test")
        self._whole = self._count - self._count % (batch * group.replicas)
        self._steps = self._whole // (batch * group.replicas)
        self._rest_steps = -(-(self._count - self._whole) // batch)
        self._shared = examples.take(self._whole).shard(group.workers, group.index).batch(batch)
        rest = examples.skip(self._whole).batch(batch)
        # Each of this worker's replicas takes a batch from the pipeline: the same one.
        self._rest = rest.flat_map(plain(lambda *each: _repeated(each, group.local_replicas)))
        self._names: List[str] = []
        self._run = _compiled(group, model, self._names, autograph=is_keras_2(keras))
        self._reset = resetter(group, model)
        sources.first(examples, "test")

    def metrics(self) -> Dict[str, float]:
        """Evaluate; every worker calls it at the same step."""
        import tensorflow as tf

        total = tf.constant(0.0)
        for batches, steps, examples in (
            (self._shared, self._steps, self._whole),
            (self._rest, self._rest_steps, self._count - self._whole),
        ):
            if steps:
                self._reset()
                iterator = iter(data.distributed(self._group, batches))
                total += examples * self._run(iterator, tf.constant(steps))
        self._reset()
        return dict(zip(self._names, (total / self._count).numpy().tolist()))


def stacked(logs: Dict[str, Any], names: List[str]) -> Any:
    """The scalars among a step's logs as one float32 vector [n], their names left in `names`; n values, but one reduction."""
    import tensorflow as tf

    scalars = {name: tf.cast(value, tf.float32) for name, value in logs.items() if getattr(value, "shape", None) == ()}
    names[:] = sorted(scalars)
    return tf.stack([scalars[name] for name in names])


def of_this_worker(group: Group, value: Any) -> Any:
    """The mean over this worker's own replicas, without asking the others."""
    import tensorflow as tf

    values = group.strategy.experimental_local_results(value)
    return values[0] if len(values) == 1 else tf.reduce_mean(tf.stack(values), 0)


def resetter(group: Group, model: Any) -> Callable[[], Any]:
    """reset() that makes the model's metrics begin anew: as a graph, since one by one it takes 20 ms each with several workers."""
    import tensorflow as tf

    def replica() -> None:
        model.reset_metrics()

    return tf.function(lambda: group.strategy.run(replica), autograph=False)  # type: ignore[no-any-return]


def of_all(group: Group, value: Any) -> Any:
    """The mean over all workers of what each of them has, in one exchange. Every worker calls it."""
    import tensorflow as tf

    if group.workers == 1:
        return value

    of_replicas = group.strategy.run(tf.identity, args=(value,))
    return group.strategy.reduce(tf.distribute.ReduceOp.MEAN, of_replicas, axis=None)


def _compiled(group: Group, model: Any, names: List[str], autograph: bool) -> Any:
    """All steps in one call; Keras's metrics accumulate, so the last step tells of all batches. autograph: see loops._compiled."""
    import tensorflow as tf

    def replica(batch: Any) -> Any:
        return stacked(model.test_step(batch), names)

    def several_steps(iterator: Any, steps: Any) -> Any:
        def one(i: Any, _: Any) -> Any:
            return i + 1, of_this_worker(group, group.strategy.run(replica, args=(next(iterator),)))

        shapes = (tf.TensorShape([]), tf.TensorShape([None]))
        return of_all(group, tf.while_loop(lambda i, _: i < steps, one, (0, tf.zeros([0])), shapes)[1])

    return tf.function(several_steps, autograph=autograph)


def _repeated(batch: Any, times: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).repeat(times)
