"""Which strategy is taken, from what is in the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from worker_image.strategies import choose
from worker_image.train_errors import WrongInputError


def tf_config(workers: int = 2, index: int = 0, role: str = "worker", **others: Any) -> dict[str, str]:
    cluster = {**others, "worker": [f"host{i}:1" for i in range(workers)]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


@pytest.mark.parametrize(
    ("environ", "gpus", "name", "reason"),
    [
        ({}, 0, "default", "one worker, and at most one GPU"),
        ({}, 1, "default", "one worker, and at most one GPU"),
        ({}, 4, "mirrored", "this machine has 4 GPUs"),
        ({"TF_CONFIG": "{}"}, 0, "default", "one worker, and at most one GPU"),
        (tf_config(1), 0, "default", "one worker, and at most one GPU"),
        (tf_config(1), 2, "mirrored", "this machine has 2 GPUs"),
        (tf_config(3), 8, "multi_worker_mirrored", "TF_CONFIG names 3 workers"),
        (tf_config(1, chief=["c:1"]), 0, "multi_worker_mirrored", "TF_CONFIG names 2 workers"),
        ({"TPU_NAME": "local"}, 0, "tpu", "TPU_NAME is set"),
        ({"TPU_WORKER_ID": "0"}, 0, "tpu", "TPU_WORKER_ID is set"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, 0, "tpu", "TPU_ACCELERATOR_TYPE is set"),
        ({"TPU_NAME": ""}, 0, "default", "one worker, and at most one GPU"),
    ],
)
def test_auto_takes_what_is_there(environ: dict[str, str], gpus: int, name: str, reason: str) -> None:
    """TPU before several workers before several GPUs, and the reason is told."""
    choice = choose("auto", environ, gpus)
    assert (choice.name, choice.reason) == (name, reason)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 0)),
        (tf_config(3, 2), (3, 2)),
        (tf_config(2, 0, chief=["c:1"]), (3, 1)),
        (tf_config(2, 0, "chief", chief=["c:1"]), (3, 0)),
    ],
)
def test_the_place_in_the_group_counts_the_chief_first(environ: dict[str, str], place: Any) -> None:
    """Exactly one process of a cluster is worker 0."""
    choice = choose("auto", environ, 0)
    assert (choice.workers, choice.index) == place


@pytest.mark.parametrize("requested", ["default", "mirrored", "multi_worker_mirrored", "tpu"])
def test_a_request_that_fits_is_followed(requested: str) -> None:
    """An explicit choice goes before what auto would take."""
    environ = {"multi_worker_mirrored": tf_config(1), "tpu": {"TPU_NAME": "local"}}.get(requested, {})
    assert choose(requested, environ, 8).name == requested


@pytest.mark.parametrize(
    ("requested", "environ", "sentence"),
    [
        ("default", tf_config(2), "would train 2 separate models"),
        ("mirrored", tf_config(4), "would train 4 separate models"),
        ("multi_worker_mirrored", {}, "needs TF_CONFIG"),
        ("tpu", {}, "needs a TPU, and none of TPU_NAME"),
        ("auto", {"TF_CONFIG": "{"}, "not a cluster description"),
        ("auto", {"TF_CONFIG": "[]"}, "not a cluster description"),
        ("auto", {"TF_CONFIG": '{"cluster": {"worker": 3}}'}, "not a cluster description"),
        ("auto", {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"index": "x"}}'}, "not a cluster description"),
        ("auto", tf_config(2, 2), "says worker 2, but its cluster has 0 chief and 2 worker entries"),
        ("auto", tf_config(2, 0, "ps", ps=["p:1"]), "the role 'ps'"),
        ("auto", tf_config(2, 0, "evaluator"), "the role 'evaluator'"),
    ],
)
def test_a_contradiction_is_refused(requested: str, environ: dict[str, str], sentence: str) -> None:
    """What is asked for and what is there must fit, or the user is told how they differ."""
    with pytest.raises(WrongInputError, match=sentence):
        choose(requested, environ, 0)


@pytest.mark.tensorflow
def test_the_job_files_strategy_reaches_the_entrypoint(finish: Callable[..., Run], tmp_path: Path) -> None:
    """`strategy:` of a job file is what the entrypoint takes; on what it can't be used, it says so and fails."""
    (tmp_path / "job.yaml").write_text("builtin: digits\nworkers: 2\nstrategy: default\nrestarts: {max: 0}\n")
    run = finish("job.yaml")
    assert run.process.returncode == 1
    assert "train: " in run.log(0, 0), run.report()
    assert "default" in run.log(0, 0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("local", "TensorFlow finds no TPU at 'local' (TPUs not found in the cluster); check TPU_NAME"),
        ("grpc://127.0.0.1:9", "TPU_NAME is grpc://127.0.0.1:9, and nobody answers there (Connection refused); give"),
        ("my-tpu", "TensorFlow finds no TPU at 'my-tpu' ("),
    ],
)
def test_a_tpu_that_is_not_there_is_one_sentence(
    name: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its kind of name: of this machine, an address, a name that Google's API would have to know."""
    pytest.importorskip("tensorflow")
    from worker_image import train

    monkeypatch.setenv("TPU_NAME", name)
    with pytest.raises(SystemExit) as ended:
        train.main(["--task", "digits", "--strategy", "tpu"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"train: {sentence}"), said
    assert said.count("\n") == 1


def test_auto_does_without_the_tpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it takes instead, and why."""
    pytest.importorskip("tensorflow")
    from worker_image import train

    monkeypatch.setenv("TPU_NAME", "local")
    with pytest.raises(SystemExit) as ended:
        train.main(["--task", "digits", "--epochs", "1"])
    assert ended.value.code == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("strategy: default, because one worker, and at most one GPU, and the TPU can't be used: TensorFlow finds no TPU")
