"""The training entrypoint's options; a job file's `train:` becomes them (orchestrator/training_spec.py)."""

from __future__ import annotations

import argparse
import os
from typing import Tuple

from worker_image import strategies

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def parser(description: str) -> argparse.ArgumentParser:
    """Every option, with its default."""
    made = argparse.ArgumentParser(prog="train", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--task", required=True, help="digits, a path to a .py file, or a module's dotted name")
    _add_training(made.add_argument_group("training"))
    _add_place(made.add_argument_group("where and how"))
    _add_results(made.add_argument_group("what is kept and seen"))
    return made


def _add_training(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--epochs", type=_positive, default=10, help="default: 10")
    add("--batch-size", type=_positive, default=32, help="examples per replica and step; default: 32")
    add("--seed", type=_natural, default=0, help="of the initial weights and of the order of the examples; default: 0")
    add("--loop", choices=("custom", "fit"), default="custom", help="our own loop (default) or Keras's fit")
    add("--steps-per-call", type=_natural, default=0, help="steps between two reports; default: measured, a quarter of a second")
    add("--accumulate", type=_positive, default=1, help="parts in which a replica's batch is computed, for less memory; default: 1")
    add("--clip-norm", type=_above_zero, help="the largest norm of all gradients together; default: none")
    add("--jit-compile", action="store_true", help="compile the forward and backward pass with XLA")
    add("--precision", choices=PRECISIONS, default="float32", help="Keras's policy; default: float32")
    add("--drop-remainder", action="store_true", help="leave out the last step of an epoch where it is not whole")
    add("--cache", choices=("auto", "yes", "no"), default="auto", help="keep the examples in memory; default: up to 0.5 GB")
    add("--evaluate-epochs", type=_natural, default=0, help="evaluate after every so many epochs; default: at the end only")


def _add_place(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    wanted = os.environ.get("TFRUN_STRATEGY", "auto")
    add("--strategy", choices=strategies.NAMES, default=wanted, help="default: TFRUN_STRATEGY, else auto, by what is there")
    add("--communication", choices=strategies.COMMUNICATION, default="auto", help="between workers; nccl is for GPUs; default: auto")
    add("--logical-devices", type=_positive, default=1, help="split the processors, to try mirrored without GPUs; default: 1")
    add("--deterministic", action="store_true", help="the same result in each run, where TensorFlow can, and slower")
    add("--check-numerics", action="store_true", help="end with the operation that made the first NaN or infinity; much slower")


def _add_results(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    directory = os.environ.get("TFRUN_CHECKPOINT_DIR")
    add("--checkpoint-dir", default=directory, help="shared by all workers; default: TFRUN_CHECKPOINT_DIR, else no checkpoints")
    add("--checkpoint-steps", type=_natural, default=0, help="steps between two checkpoints, besides the ends of the epochs")
    add("--checkpoint-seconds", type=_above_zero, default=0.0, help="seconds between two checkpoints, besides the ends of the epochs")
    add("--keep", type=_positive, default=3, help="complete checkpoints that are kept; default: 3")
    add("--best", default="", metavar="METRIC", help="keep the checkpoint with the best value of the test set too, such as accuracy")
    add("--export", default="", metavar="DIR", help="at the end, write the model there, as model.keras and as a SavedModel")
    add("--tensorboard", default="", metavar="DIR", help="write scalars there")
    add("--profile", type=_steps, metavar="FIRST:LAST", help="profile these steps, for TensorBoard")


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _positive(text: str) -> int:
    number = _natural(text)
    if not number:
        raise ValueError
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _steps(text: str) -> Tuple[int, int]:
    first, _, last = text.partition(":")
    if not 0 < int(first) <= int(last):
        raise ValueError
    return int(first), int(last)


# argparse says "invalid positive number value: '0'"
_positive.__name__, _natural.__name__ = "positive number", "number from 0 on"
_above_zero.__name__, _steps.__name__ = "number above 0", "pair of steps such as 100:110"
