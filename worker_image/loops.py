"""The two training loops, Keras's `fit` and our own: many steps a call, since coming back to Python costs more than a small step."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List

from worker_image.evaluation import of_all, of_this_worker, resetter, stacked
from worker_image.strategies import Group
from worker_image.tasks import is_keras_2
from worker_image.training import Training

CALL_TIME = 0.25  # seconds that a call should take: the steps between two reports, and until a save that is asked for
MOST_STEPS = 1000  # of a call
STARVED = 0.25  # the share of the time spent waiting for the input from which on it is worth a word
ENOUGH = 2.0  # seconds of training that a share can be told of
TRIAL = 5  # steps of the call that is measured


def custom(training: Training, model: Any, keras: Any, steps_per_call: int, timed: bool) -> None:
    """Train with a loop of our own. steps_per_call: 0 measures, and takes what fits into CALL_TIME. timed: the waits for the input."""
    import tensorflow as tf

    names: List[str] = []
    call = _compiled(training.group, model, names, timed, autograph=is_keras_2(keras))
    reset = resetter(training.group, model)
    iterator = iter(training.batches())
    pace = _Pace(training.group, steps_per_call)
    while training.step < training.course.total:
        if training.course.starts_epoch(training.step) and training.step > training.course.begin.step:
            reset()
        steps = min(pace.steps, training.next_stop() - training.step)
        began = time.monotonic()
        losses, own, logs, waited = (each.numpy() for each in call(iterator, tf.constant(steps)))
        took = time.monotonic() - began
        bad = [i for i in range(steps) if not math.isfinite(losses[i])]
        if bad:
            training.not_finite(training.step + bad[0] + 1, float(losses[bad[0]]), not math.isfinite(own[bad[0]]))
        pace.note(steps, took, float(waited))
        training.done(training.step + steps, dict(zip(names, logs.tolist())))
    pace.tell(training)


def fit(training: Training, model: Any, keras: Any, steps_per_call: int) -> None:
    """Train with Keras's `fit`: one call for the rest of a begun epoch, one for the whole epochs."""
    if is_keras_2(keras):
        model.distribute_reduction_method = "first"  # by default it tells the sum of all workers' accuracies
    course = training.course
    while training.step < course.total:
        begun = not course.starts_epoch(training.step)
        end = course.epoch_end(training.step) if begun else course.total
        per_epoch = end - training.step if begun else course.per_epoch
        # Keras 3.15's loop in a graph fails with several devices in a process: "You must feed a value for placeholder tensor".
        most = 1 if training.group.local_replicas > 1 else steps_per_call or MOST_STEPS
        _execute(model, keras, _divisor(most, per_epoch, *training.stops()))
        model.fit(
            training.batches(),
            steps_per_epoch=per_epoch,
            epochs=(end - training.step) // per_epoch,
            shuffle=False,  # it is; Keras warns of its own default
            callbacks=[_boundary(training, keras)],
            verbose=0,
        )


def _compiled(group: Group, model: Any, names: List[str], timed: bool, autograph: bool) -> Any:
    """call(iterator, steps) -> (losses [steps], this worker's own [steps], the last step's logs [names], seconds waited for the input).

    Losses and logs are the mean over all workers. The workers exchange them once a call. autograph: whether the Python of a user's layers
    becomes a graph, as in the fit of Keras 2 and not of Keras 3; looking through ours for it would take 0.3 s.
    """
    import tensorflow as tf

    strategy = group.strategy

    def replica(batch: Any) -> Any:
        logs = model.train_step(batch)
        return tf.cast(logs["loss"], tf.float32), stacked(logs, names)

    def now(*after: Any) -> Any:
        with tf.control_dependencies(after):
            return tf.timestamp() if timed else tf.constant(0.0, tf.float64)

    def several_steps(iterator: Any, steps: Any) -> Any:
        def one(i: Any, waited: Any, loss: Any, losses: Any, _: Any) -> Any:
            # After the step before, or what is measured would be how long the input takes beside the computation.
            before = now(loss)
            with tf.control_dependencies([before]):
                batch = next(iterator)
            waited += now(*strategy.experimental_local_results(tf.nest.flatten(batch)[0])) - before
            loss, logs = (of_this_worker(group, each) for each in strategy.run(replica, args=(batch,)))
            return i + 1, waited, loss, losses.write(i, loss), logs

        nothing = (0, tf.constant(0.0, tf.float64), tf.constant(0.0), tf.TensorArray(tf.float32, size=steps), tf.zeros([0]))
        shapes = (*(tf.TensorShape([]),) * 3, None, tf.TensorShape([None]))
        loop = tf.while_loop(lambda i, *_: i < steps, one, nothing, shapes)
        _, waited, _, losses, logs = loop
        own = losses.stack()
        told = of_all(group, tf.concat([own, logs], 0))
        return told[:steps], own, told[steps:], waited

    return tf.function(several_steps, autograph=autograph)


class _Pace:
    """How many steps a call makes, the same on every worker, and how much of its time goes into waiting for the input."""

    def __init__(self, group: Group, asked: int) -> None:
        self.steps = asked or 1
        self._measured = bool(asked)
        self._group = group
        self._calls = 0
        self._took = 0.0
        self._waited = 0.0

    def note(self, steps: int, took: float, waited: float) -> None:
        """Of a call. The first one traces the graph, and says nothing of those that follow."""
        self._calls += 1
        if self._calls == 1:
            self.steps = self.steps if self._measured else TRIAL
            return
        self._took += took
        self._waited += waited
        if not self._measured:
            self._measured = True
            fitting = min(max(int(CALL_TIME * steps / took), 1), MOST_STEPS)
            self.steps = min(self._group.gather(fitting))

    def tell(self, training: Training) -> None:
        """Where the input sets the speed, with the measured shares."""
        share = self._waited / self._took if self._took > ENOUGH else 0.0
        if share > STARVED:
            training.say(
                f"input: {share:.0%} of the time went into waiting for examples and {1 - share:.0%} into computing; faster input (cache, "
                "fewer or larger files, less work in build_dataset) would make the training faster"
            )


def _divisor(most: int, *numbers: int) -> int:
    """The largest number of steps up to `most` by which all can be divided: Keras does not stop in the middle of a call."""
    common = 0
    for number in numbers:
        common = math.gcd(common, number)
    return max(steps for steps in range(1, min(most, common) + 1) if common % steps == 0)


def _execute(model: Any, keras: Any, steps: int) -> None:
    """Let Keras make so many steps a call."""
    if is_keras_2(keras):
        model._steps_per_execution.assign(steps)  # compile's argument of that name; there is no other way to change it
    elif model.steps_per_execution != steps:
        model.steps_per_execution = steps
        model.train_function = None  # the former number is in it


def _boundary(training: Training, keras: Any) -> Any:
    class Boundary(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 # Keras passes them by name
            self.began = training.step

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found: Dict[str, float] = {name: float(value) for name, value in logs.items()}
            if not math.isfinite(found.get("loss", 0.0)):
                training.not_finite(self.began + batch + 1, found["loss"])
            training.done(self.began + batch + 1, found)

    return Boundary()
