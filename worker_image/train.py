"""The training program that comes with tfrun: any model, any number of workers.

    python -m worker_image.train --task digits
    tfrun run -n 2 -m worker_image.train --task my_task.py --epochs 5

A task is a module with build_model(), which returns a compiled Keras model, and build_dataset(split), which returns a tf.data.Dataset
of single (x, y) examples for the splits "train" and "test". It may have on_start(model) and on_end(model, metrics) too.
"""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType
from typing import Any, List, NoReturn, Optional, Tuple

from worker_image import checkpoint_files, data, export, loops, model, settings, sources, steps, strategies, tasks
from worker_image.checkpoint import Checkpoints, Place
from worker_image.course import Course
from worker_image.data import TrainingSet
from worker_image.evaluation import Evaluation
from worker_image.profiling import Profile
from worker_image.scalars import Scalars
from worker_image.sources import Source
from worker_image.strategies import Group, counted
from worker_image.train_errors import TrainError, WrongInputError
from worker_image.training import Evaluating, Saving, Training


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Train as the arguments say, and exit: 0 done, 1 the training failed, 2 what was given can't work."""
    options = settings.parser(__doc__ or "").parse_args(arguments)
    try:
        _run(options)
    except TrainError as e:
        print(f"train: {e}", file=sys.stderr, flush=True)
        sys.exit(e.exit_code)
    sys.exit(0)


def _run(options: argparse.Namespace) -> None:
    if options.deterministic and options.check_numerics:
        raise WrongInputError(
            "--deterministic and --check-numerics exclude each other, as TensorFlow's deterministic operations make NaNs; choose one"
        )
    found = tasks.find(options.task)
    for option, directory in (("--checkpoint-dir", options.checkpoint_dir), ("--export", options.export)):
        if directory:
            checkpoint_files.prepare_directory(directory, option)
    group, told = _group(options)
    model.prepare(options)
    task = tasks.load(found)  # after the strategy: a module that uses TensorFlow at its top would make that impossible
    source = sources.source(task.build_dataset, "train", group, options.cache)
    net, keras = model.build(group, task, source.first, options)
    training_set = _training_set(options, group, net, source)
    _agree(options, group, training_set)
    saving, begin = _saving(options, group, net, training_set)
    training = _training(options, group, (net, keras), task, training_set, saving, begin)
    for line in [*told, *_told(options, group, training_set), _start(training, training_set)]:
        training.say(line)
    try:
        _train(options, training, task, net, keras)
    finally:
        training.close()
    if saving:
        saving.checkpoints.close()
    if options.export:
        export.export(net, keras, group, options.export)
        training.say(f"exported to {options.export}")


def _train(options: argparse.Namespace, training: Training, task: ModuleType, net: Any, keras: Any) -> None:
    import tensorflow as tf

    _hook(task, "on_start", net)
    training.begin()
    if options.check_numerics:  # not before: Keras makes infinities on purpose where it tries a model
        tf.debugging.enable_check_numerics()
    try:
        if options.loop == "fit":
            loops.fit(training, net, keras, options.steps_per_call)
        else:
            loops.custom(training, net, keras, options.steps_per_call, timed=not options.deterministic)
        metrics = training.evaluate()
    except tf.errors.InvalidArgumentError as e:
        raise model.sentence_for(e) or e from e
    _hook(task, "on_end", net, metrics)
    shown = {name: value for name, value in metrics.items() if name != "loss"} or metrics
    results = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
    training.say(f"test {results} after {counted(training.step, 'step')} ({counted(training.group.workers, 'worker')})")


def _group(options: argparse.Namespace) -> Any:
    import tensorflow as tf

    if options.logical_devices > 1:
        strategies.split_cpu(options.logical_devices)
    wanted = "mirrored" if options.strategy == "auto" and options.logical_devices > 1 else options.strategy
    choice = strategies.choose(wanted, os.environ, len(tf.config.list_physical_devices("GPU")))
    choice, group = strategies.create(choice, os.environ, options.communication)
    return group, strategies.described(choice, group)


def _training_set(options: argparse.Namespace, group: Group, net: Any, source: Source) -> TrainingSet:
    static = options.jit_compile or "TPU" in type(group.strategy).__name__  # compiled for one shape of batch
    drop = options.drop_remainder or static or steps.is_custom(net)  # a user's step need not know of weights
    return TrainingSet(source, group, options.batch_size, options.seed, drop)


def _agree(options: argparse.Namespace, group: Group, training_set: TrainingSet) -> None:
    """Workers that differ here would make different numbers of steps, and the others would wait for them for ever."""
    numbers = {
        "global batch": training_set.global_batch,
        "examples": training_set.source.count,
        "seed": options.seed,
        "in memory": int(training_set.source.in_memory),
        "checkpoint steps": options.checkpoint_steps,
        "having a checkpoint directory": int(bool(options.checkpoint_dir)),
        "epochs": options.epochs,
        "steps per call": options.steps_per_call,
        "evaluate epochs": options.evaluate_epochs,
        "accumulate": options.accumulate,
        "loop": int(options.loop == "fit"),
        "export": int(bool(options.export)),
        "profile": int(bool(options.profile)),
    }
    of_workers = group.gather_all(list(numbers.values()))
    for name, values in zip(numbers, zip(*of_workers)):
        if len(set(values)) > 1:
            raise TrainError(f"the workers differ in {name}: {list(values)}; give each the same options and the same data")


def _saving(options: argparse.Namespace, group: Group, net: Any, training_set: TrainingSet) -> Any:
    """(how to save, or None; where the training begins)."""
    if not options.checkpoint_dir:
        return None, Place(0, 0, 0)
    # Shuffled in memory and as a stream, the order is another.
    meaning = {"examples": training_set.source.count, "seed": options.seed, "in memory": int(training_set.source.in_memory)}
    checkpoints = Checkpoints(options.checkpoint_dir, group, net, meaning, keep=options.keep, best=options.best)
    layout = {"workers": group.workers, "global batch": training_set.global_batch, "by position": training_set.source.by_position}
    saving = Saving(checkpoints, options.checkpoint_steps, options.checkpoint_seconds, layout)
    restored = checkpoints.restore()
    if restored is None:
        return saving, Place(0, 0, 0)
    place = restored.place
    same_order = training_set.source.by_position and restored.layout.get("by position")
    if place.examples and restored.layout != layout and not same_order:
        if group.chief:
            print(f"epoch {place.epoch + 1} begins anew, as its examples are now shared out among the workers otherwise", flush=True)
        place = Place(place.step, place.epoch, 0)
    return saving, place


def _training(
    options: argparse.Namespace,
    group: Group,
    built: Tuple[Any, Any],
    task: ModuleType,
    training_set: TrainingSet,
    saving: Optional[Saving],
    begin: Place,
) -> Training:
    net, keras = built
    test = sources.everything(task.build_dataset, "test")
    _refuse_unknown_best(options.best, net)
    every = options.evaluate_epochs or int(bool(options.best))
    evaluating = Evaluating(Evaluation(group, net, keras, test, options.batch_size), every)
    course = Course(training_set, options.epochs, begin)
    profile = None
    if options.profile:
        first, last = options.profile
        if not options.tensorboard:
            raise WrongInputError("--profile needs a directory to write to; give --tensorboard DIR")
        if first > course.total:
            raise WrongInputError(
                f"--profile begins with step {first}, and the training ends with step {course.total}; choose earlier steps"
            )
        profile = Profile(options.tensorboard, first, last, here=group.chief)
    scalars = Scalars(options.tensorboard, begin.step) if options.tensorboard and group.chief else None
    return Training(group, training_set, course, evaluating, saving, scalars, profile)


def _refuse_unknown_best(best: str, net: Any) -> None:
    if not best:
        return
    known = sorted(net.get_metrics_result())
    if best not in known:
        raise WrongInputError(f"--best {best} is none of the model's metrics ({', '.join(known)}); choose one of them")


def _told(options: argparse.Namespace, group: Group, training_set: TrainingSet) -> List[str]:
    source = training_set.source
    lines = [f"data: {counted(source.count, 'example')} to train with; {source.reason}"]
    special = {
        "precision": options.precision if options.precision != "float32" else "",
        "gradients in": counted(options.accumulate, "part") if options.accumulate > 1 else "",
        "gradients clipped at": options.clip_norm,
        "compiled by": "XLA" if options.jit_compile else "",
    }
    lines += [f"{name}: {value}" for name, value in special.items() if value]
    tpu = data.advice(options.batch_size, group.replicas) if "TPU" in type(group.strategy).__name__ else ""
    return [*lines, *([f"warning: {tpu}"] if tpu else [])]


def _start(training: Training, training_set: TrainingSet) -> str:
    begun = f"resuming after step {training.step}" if training.step else "starting"
    per_epoch = training.course.per_epoch
    rest = training_set.consumed(0, per_epoch) - training_set.consumed(0, per_epoch - 1)
    whole = "" if rest == training_set.global_batch else f", {rest} in an epoch's last"
    replicas = f"{counted(training.group.replicas, 'replica')} of {training_set.global_batch // training.group.replicas}"
    each = f"{training_set.global_batch} examples each ({replicas}){whole}"
    return f"{begun}: {counted(training.course.epochs, 'epoch')} of {counted(per_epoch, 'step')}, {each}"


def _hook(task: ModuleType, name: str, *arguments: Any) -> None:
    hook = getattr(task, name, None)
    if hook is not None:
        hook(*arguments)


if __name__ == "__main__":
    main()
