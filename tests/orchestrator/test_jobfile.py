"""The job file: what is understood, and what is refused in one sentence before anything exists."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import jobfile, names, spec
from orchestrator.errors import InvalidJobError
from orchestrator.training_spec import Checkpoints, Train, different
from worker_image import settings

Refuse = Callable[["str | bytes"], str]


@pytest.fixture
def refuse(tmp_path: Path) -> Refuse:
    def refused(text: str | bytes) -> str:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InvalidJobError) as caught:
            jobfile.load(path)
        message = str(caught.value)
        assert message.startswith(str(path))
        assert "\n" not in message
        assert caught.value.exit_code == 2
        return message.removeprefix(str(path)).lstrip(": ")

    return refused


def test_a_whole_job_file_is_understood(tmp_path: Path) -> None:
    """Every key of the format, with durations in seconds."""
    (tmp_path / "job.yaml").write_text(
        "name: digits\nprogram: -m pack.train\nargs: [--epochs, '5']\nworkers: 2\nstrategy: default\n"
        "restarts: {max: 3, within: 1h30m}\ndeadlines: {start: 90s, run: 2d, progress: 0.5m}\n"
        "checkpoints: {directory: /ckpt}\nenv: {A: '1'}\n"
    )
    job = jobfile.load(tmp_path / "job.yaml")
    assert job.command() == ["module", "pack.train", "--epochs", "5"]
    assert (job.restarts.max, job.restarts.within) == (3, 5400.0)
    assert (job.deadlines.start, job.deadlines.run, job.deadlines.progress) == (90.0, 172800.0, 30.0)
    assert job.checkpoints
    assert job.checkpoints.directory == "/ckpt"


def test_a_builtin_runs_the_shared_entrypoint() -> None:
    """builtin: digits is the entrypoint with that task."""
    assert spec.make({"builtin": "digits"}, "x").command() == ["module", "worker_image.train", "--task", "digits"]


TASK = """
task: src/My_Task.py
args: [--epochs, "6"]
train:
  epochs: 5
  batch_size: 64
  loop: fit
  steps_per_call: 20
  accumulate: 2
  clip_norm: 1.0
  jit_compile: true
  precision: mixed_bfloat16
  seed: 7
  deterministic: true
  check_numerics: true
  cache: no
  drop_remainder: true
  communication: ring
  evaluate_epochs: 2
  tensorboard: /data/tb
  profile: {steps: [100, 110]}
  export: gs://bucket/model
checkpoints: {directory: /ckpt, steps: 500, every: 10m, keep: 5, best: accuracy}
"""


def test_a_tasks_settings_become_the_entrypoints_options(tmp_path: Path) -> None:
    """In the order of the documentation, and `args`, which win, at the end; YAML 1.2's `no` is text."""
    (tmp_path / "job.yaml").write_text(TASK)
    job = jobfile.load(tmp_path / "job.yaml")
    assert job.name == "my-task"
    assert " ".join(job.command()) == (
        "module worker_image.train --task src/My_Task.py --epochs 5 --batch-size 64 --loop fit --steps-per-call 20 --accumulate 2 "
        "--clip-norm 1 --jit-compile --precision mixed_bfloat16 --seed 7 --deterministic --check-numerics --cache no --drop-remainder "
        "--communication ring --evaluate-epochs 2 --tensorboard /data/tb --profile 100:110 --export gs://bucket/model "
        "--checkpoint-steps 500 --checkpoint-seconds 600 --keep 5 --best accuracy --epochs 6"
    )


def test_defaults_are_left_to_the_entrypoint() -> None:
    """Also where a job file writes them out."""
    train = {"epochs": 10, "batch_size": 32, "loop": "custom", "jit_compile": False, "clip_norm": None, "cache": "auto"}
    made = spec.make({"builtin": "digits", "train": train, "checkpoints": {"directory": "c", "steps": 0, "keep": 3}}, "x")
    assert made.command() == ["module", "worker_image.train", "--task", "digits"]


def test_the_entrypoint_takes_what_the_job_file_gives(tmp_path: Path) -> None:
    """Every option, with the value that was meant; and the defaults of both are the same."""
    (tmp_path / "job.yaml").write_text(TASK)
    job = jobfile.load(tmp_path / "job.yaml")
    taken = settings.parser("").parse_args(job.model_copy(update={"args": ()}).command()[2:])
    assert job.train
    assert job.checkpoints
    meant = {**job.train.model_dump(), "task": job.task, "profile": (100, 110)}
    assert {key: getattr(taken, key) for key in meant} == meant
    assert (taken.checkpoint_steps, taken.checkpoint_seconds, taken.keep, taken.best) == (500, 600.0, 5, "accuracy")
    own = settings.parser("").parse_args(["--task", "x"])
    assert {key: getattr(own, key) or None for key in Train.model_fields} == {key: value or None for key, value in Train()}
    default = Checkpoints(directory="c")
    assert (own.checkpoint_steps, own.checkpoint_seconds or None, own.keep, own.best or None) == tuple(dict(default).values())[1:]


@pytest.mark.parametrize(
    ("task", "name"), [("a.py", "a"), ("/app/b.py", "b"), ("parts.tasks", "parts-tasks"), ("tasks", "tasks"), ("../c.py", "c")]
)
def test_what_a_task_can_be(task: str, name: str) -> None:
    """The path of a file, or a module's dotted name."""
    made = spec.make({"task": task}, "x")
    assert (made.name, made.command()) == (name, ["module", "worker_image.train", "--task", task])


def test_programs_of_ones_own_may_say_where_checkpoints_go() -> None:
    """TFRUN_CHECKPOINT_DIR is for them, too."""
    assert spec.make({"program": "a.py", "checkpoints": {"directory": "c", "steps": 0, "keep": 3}}, "x").checkpoints


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "program: a.py\ntrain: {epochs: 5}",
            "the job has train, which only tfrun's entrypoint reads; write `task: my_task.py` in place of",
        ),
        ("program: -m worker_image.train\ntrain: {}", "write `task: my_task.py` in place of `program: -m worker_image.train`"),
        ("program: a.py\ncheckpoints: {directory: c, keep: 5}", "the job has checkpoints.keep, which only tfrun's entrypoint reads"),
        ("task: ''", "task is ''; it must be the path of a .py file, such as my_task.py, or a module's dotted name"),
        ("task: src/a", "it must be the path of a .py file"),
        ("task: -a.py", "it must be the path of a .py file"),
        ("task: a b", "it must be the path of a .py file"),
        ('task: "a\\0.py"', "task has a NUL character in it"),
        ("task: digits", "task is 'digits'; it is the name of one of tfrun's own; write `builtin: digits`"),
        ("task: ../a.py\ncode: src", "has the code src and no task in it; give its path from there, such as `task: my_task.py`"),
        ("task: /a.py\ncode: src", "has the code src and no task in it"),
        ("task: a\ntrain: 5", "train is 5; it must be a mapping"),
        ("task: a\ntrain: {epoch: 5}", "there is no key train.epoch; did you mean epochs?"),
        ("task: a\ntrain: {epochs: 0}", "train.epochs is 0; it must be at least 1"),
        ("task: a\ntrain: {seed: -1}", "train.seed is -1; it must be at least 0"),
        ("task: a\ntrain: {seed: 3000000000}", "train.seed is 3000000000; it must be less than 2147483648"),
        ("task: a\ntrain: {batch_size: '64'}", "train.batch_size is '64'; it must be a whole number, without quotes"),
        ("task: a\ntrain: {clip_norm: 0}", "train.clip_norm is 0; it must be more than 0"),
        ("task: a\ntrain: {clip_norm: .inf}", "train.clip_norm is inf; it must be a number, such as 1.0"),
        ("task: a\ntrain: {clip_norm: '1'}", "train.clip_norm is '1'; it must be a number, without quotes"),
        ("task: a\ntrain: {jit_compile: 1}", "train.jit_compile is 1; it must be true or false"),
        ("task: a\ntrain: {jit_compile: yes}", "train.jit_compile is 'yes'; it must be true or false"),
        ("task: a\ntrain: {cache: false}", "train.cache is False; it must be one of 'auto', 'yes' or 'no'"),
        ("task: a\ntrain: {loop: keras}", "train.loop is 'keras'; it must be one of 'custom' or 'fit'"),
        ("task: a\ntrain: {tensorboard: ''}", "train.tensorboard is ''; it must not be empty nor begin with '-'"),
        ("task: a\ntrain: {export: -x}", "train.export is '-x'; it must not be empty nor begin with '-'"),
        ("task: a\ntrain: {profile: {steps: [1, 2]}}", "train has a profile and no directory for it; add tensorboard, such as"),
        ("task: a\ntrain: {tensorboard: t, profile: {}}", "train.profile.steps is missing; it is required"),
        ("task: a\ncheckpoints: {directory: c, every: often}", "checkpoints.every is 'often'; it must be a duration"),
        ("task: a\ncheckpoints: {directory: c, keep: 0}", "checkpoints.keep is 0; it must be at least 1"),
        ("task: a\ncheckpoints: {steps: 5}", "checkpoints.directory is missing; it is required"),
        ("task: a\ncheckpoints: {directory: c, best: --x}", "checkpoints.best is '--x'; it must not be empty nor begin with '-'"),
        ('task: a\ncheckpoints: {directory: "c\\0"}', "checkpoints.directory has a NUL character in it"),
    ],
)
def test_what_the_entrypoint_would_not_take_is_refused(refuse: Refuse, text: str, says: str) -> None:
    """Field, value, rule; before anything is started."""
    assert says in refuse(text)


@pytest.mark.parametrize("steps", ["[110, 100]", "[5, 5]", "[0, 5]", "[1]", "[1, 2, 3]", "[1.0, 2]", "[true, 2]", "5", "1:2"])
def test_a_profiles_steps_are_two_increasing_numbers(refuse: Refuse, steps: str) -> None:
    """And nothing that could be taken for them."""
    says = "it must be two increasing numbers, the first and the last step, such as [100, 110]"
    assert says in refuse(f"task: a\ntrain: {{tensorboard: t, profile: {{steps: {steps}}}}}")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0", "workers is 0; it must be at least 1"),
        ("-1", "workers is -1; it must be at least 1"),
        ("'2'", "workers is '2'; it must be a whole number, without quotes"),
        ("true", "workers is True; it must be a whole number"),
        ("1.5", "workers is 1.5; it must be a whole number"),
        ("1000000", "workers is 1000000; it must be at most 100000"),
    ],
)
def test_a1_workers(refuse: Refuse, value: str, says: str) -> None:
    """A1: a number of workers that is none is refused with the value and the rule."""
    assert says in refuse(f"program: a.py\nworkers: {value}")


@pytest.mark.parametrize("name", ["Train", "1st", "x" * 51, "a_b", "a-", "../etc", "a/b", "a\\n"])
def test_a2_names(refuse: Refuse, name: str) -> None:
    """A2: what can't become a DNS label, or a folder's name, is no job name."""
    assert "it must be lower-case letters, digits and '-'" in refuse(f'program: a.py\nname: "{name}"')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("program: a.py\nworker: 3", "there is no key worker; did you mean workers?"),
        ("program: a.py\nrestarts: {mx: 3}", "there is no key restarts.mx; did you mean max?"),
        ("program: a.py\nzzz: 3", "there is no key zzz; the keys here are name, program"),
        ("program: a.py\ncheckpoints: {}", "checkpoints.directory is missing; it is required"),
        ("1: 2", "the key 1 is not text"),
    ],
)
def test_a3_keys(refuse: Refuse, text: str, says: str) -> None:
    """A3: an unknown key is never ignored."""
    assert says in refuse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("program: a.py\nprogram: b.py", "the same key twice in line 2"),
        ("program: a.py\n\tx: 1", "not valid YAML in line 2"),
        (b"\xef\xbb\xbfprogram: a.py", "begins with a byte order mark"),
        (b"program: \xff", "is not UTF-8 (byte 9)"),
        ("", "holds nothing; a job file is a mapping"),
        ("- a", "holds a list"),
        ("just text", "holds text"),
        ("3", "holds a int"),
        ("a: &x [1]\nb: *x", "line 2 uses a YAML alias"),
        ("program: !!python/object/apply:os.system [id]", "line 1 uses the YAML tag"),
        ("[" * 40, "nested deeper than 20 levels"),
        ("x: [1, 2\n", "not valid YAML in line 2"),
        ("x: \0", "not valid YAML"),
    ],
)
def test_a4_yaml(refuse: Refuse, text: str | bytes, says: str) -> None:
    """A4: duplicate keys, tabs, byte order marks, tags, aliases: refused, never guessed."""
    assert says in refuse(text)


@pytest.mark.parametrize(
    "bomb", ["a: " + "x" * 50_000_000, "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 30))]
)
def test_a4_bombs_cost_nothing(refuse: Refuse, bomb: str) -> None:
    """A4: a huge file and an alias bomb are refused within a second and 100 MB."""
    before, started = psutil.Process().memory_info().rss, time.process_time()
    message = refuse(bomb)
    assert time.process_time() - started < 1.0  # the case's own bound, of processor time
    assert psutil.Process().memory_info().rss - before < 100_000_000
    assert "larger than 1000000 bytes" in message or "YAML alias" in message


@pytest.mark.parametrize("name", ["TF_CONFIG", "JOB_COMPLETION_INDEX", "TPU_WORKER_ID", "TFRUN_WORKER"])
def test_a10_reserved_variables(refuse: Refuse, name: str) -> None:
    """A10: a job can't set what tells its workers apart."""
    assert f"env sets {name}, which tfrun sets for each worker; remove it" in refuse(f"program: a\nenv: {{{name}: x}}")


@pytest.mark.parametrize("name", ["MY_TOKEN", "PASSWORD", "AWS_SECRET", "WANDB_API_KEY", "aws_access_key"])
def test_f46_secrets_in_env(refuse: Refuse, name: str) -> None:
    """F46: a literal secret has no place in a job file, and the refusal does not show it."""
    message = refuse(f"program: a\nenv: {{{name}: canary}}")
    assert f"env holds a secret in {name}" in message
    assert "canary" not in message


@pytest.mark.parametrize("args", ["['--api-key=canary']", "[--password, canary]", "['--hf_token', canary]"])
def test_f46_secrets_in_args(refuse: Refuse, args: str) -> None:
    """F46: nor on a command line, which everyone on the machine can read."""
    message = refuse(f"program: a\nargs: {args}")
    assert "args gives a secret with --" in message
    assert "canary" not in message


@pytest.mark.parametrize("args", ["[--tokenizer, bert]", "[--token]", "[--password, --verbose]", "[token, x]", "['--max-tokens', '5']"])
def test_words_that_only_look_like_secrets_pass(args: str, tmp_path: Path) -> None:
    """No false alarm for tokenizers and token counts."""
    (tmp_path / "job.yaml").write_text(f"program: a\nargs: {args}")
    assert jobfile.load(tmp_path / "job.yaml").args


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers: 2", "needs exactly one of program, task and builtin"),
        ("program: a\nbuiltin: digits", "needs exactly one of program, task and builtin"),
        ("program: a\ntask: a.py", "needs exactly one of program, task and builtin"),
        ("task: a.py\nbuiltin: digits", "needs exactly one of program, task and builtin"),
        ("builtin: digit", "it must be one of 'digits'"),
        ("program: -m a/b", "`-m` takes a module's dotted name"),
        ('program: "-m {x} {0}"', "has the program '-m {x} {0}'; `-m` takes a module's dotted name"),
        ("program: 5", "program is 5; it must be text; put it in quotes"),
        ("program: a\nargs: [--epochs, 5]", "args[1] is 5; it must be text; put it in quotes"),
        ("program: a\nargs: x", "args is 'x'; it must be a list"),
        ('program: a\nargs: ["a\\0b"]', "args has a NUL character in an argument"),
        ("program: a\nenv: {A B: x}", "env has the name 'A B'"),
        ("program: a\nenv: {A: 5}", "env.A is 5; it must be text"),
        ('program: a\nenv: {A: "x\\0"}', "env has a NUL character in A"),
        ("program: a\nenv: 5", "env is 5; it must be a mapping"),
        ("program: a\nrestarts: 5", "restarts is 5; it must be a mapping"),
        ("program: a\nrestarts: {max: -1}", "restarts.max is -1; it must be at least 0"),
        ("program: a\ndeadlines: {start: 5 minutes}", "deadlines.start is '5 minutes'; it must be a duration such as 90s"),
        ("program: a\ndeadlines: {start: 0}", "it must be more than nothing and at most a year"),
        ("program: a\ndeadlines: {start: [1]}", "must be a duration"),
        ("program: a\nstrategy: best", "it must be one of 'auto', 'default'"),
        ("program: a\ncheckpoints: {directory: ''}", "must not be empty"),
        ("program: a\nname: " + "x" * 200, "..."),
    ],
)
def test_other_values(refuse: Refuse, text: str, says: str) -> None:
    """Field, value, rule."""
    assert says in refuse(text)


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    """A missing job file is a sentence."""
    with pytest.raises(InvalidJobError, match="can't be read \\(No such file or directory\\)"):
        jobfile.load(tmp_path / "none.yaml")


def test_yaml_traps_stay_text(tmp_path: Path) -> None:
    """YAML 1.2: what looks like text is text."""
    (tmp_path / "job.yaml").write_text("program: a\nenv: {A: no, B: 12:30, C: 2026-11-21, D: '0o17', E: 'null', F: '1e3', G: off, H: =}\n")
    env = jobfile.load(tmp_path / "job.yaml").env
    assert list(env.values()) == ["no", "12:30", "2026-11-21", "0o17", "null", "1e3", "off", "="]


@given(st.text(max_size=80))
def test_a_name_made_from_a_program_is_a_name(program: str) -> None:
    """Whatever the script is called, the job has a valid name."""
    assert names.is_name(names.name_from(program))


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_anything_is_a_job_or_a_sentence(data: object) -> None:
    """No input makes a traceback."""
    with contextlib.suppress(InvalidJobError):
        spec.make(data, "x")


_NUMBERS = st.integers(-1, 200) | st.sampled_from([0.5, 2.0, 2**31, float("nan")])
_SETTINGS = st.dictionaries(
    st.sampled_from(sorted(Train.model_fields)),
    st.booleans()
    | _NUMBERS
    | st.text(max_size=5)
    | st.sampled_from(["fit", "no", "ring", "auto"])
    | st.fixed_dictionaries({"steps": st.lists(_NUMBERS)}),
)


@given(_SETTINGS, st.sampled_from(["a.py", "a.b", "x/y.py"]))
def test_any_settings_are_words_or_a_sentence(given_settings: dict[str, object], task: str) -> None:
    """Every setting that is no default is passed once, no value looks like an option, and what is written down is the same job."""
    refusal, job = "", None
    try:
        job = spec.make({"task": task, "train": given_settings}, "x")
    except InvalidJobError as e:
        refusal = str(e)
    assert "\n" not in refusal
    if job is None:
        return
    options = [word for word in job.command()[4:] if word.startswith("--")]
    assert job.train
    assert options == [f"--{key.replace('_', '-')}" for key in different(job.train)]
    values = [word for word in job.command()[4:] if not word.startswith("--")]
    assert all(values)
    assert not any(value.startswith("-") for value in values)
    assert spec.make(job.model_dump(mode="json", exclude_defaults=True), "x") == job
