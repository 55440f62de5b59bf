"""The job file: what a training job is, checked. Knows no backend.

`JobSpec` is the job as understood; `load` reads a job file; every refusal is one sentence in an InvalidJobError.
"""

from __future__ import annotations

import difflib
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from orchestrator import names
from orchestrator.errors import InvalidJobError
from orchestrator.fields import SENTENCE, Count, Duration, Part, Text, check_string, check_variable, holds_secret
from orchestrator.kubernetes_spec import Kubernetes
from orchestrator.training_spec import Checkpoints, Train, different

WORKER_LIMIT = 100_000  # an Indexed Job takes no more: kubernetes.io/docs/concepts/workloads/controllers/job
BUILTINS = ("digits",)
ENTRYPOINT = "worker_image.train"


class Restarts(Part):
    """How many failures of the program itself are forgiven: at most `max` within `within` seconds."""

    max: Count = 10
    within: Duration = 3600.0


class Deadlines(Part):
    """Seconds: until every worker is ready; of the whole run; without a step while every worker is idle."""

    start: Duration = 600.0
    run: Duration = 86400.0
    progress: Duration = 10.0


class JobSpec(Part):
    """A training job. Exactly one of `program`, `task` and `builtin` is given; `code` is the folder of it and of what it imports."""

    name: str = ""
    program: Text | None = None
    task: Text | None = None
    code: Annotated[Text, Field(min_length=1)] | None = None
    builtin: Literal["digits"] | None = None
    args: tuple[Text, ...] = ()
    workers: Annotated[int, Field(strict=True, ge=1, le=WORKER_LIMIT)] = 1
    strategy: Literal["auto", "default", "mirrored", "multi_worker_mirrored", "tpu"] = "auto"
    train: Train | None = None
    env: dict[str, Text] = Field(default_factory=dict)
    restarts: Restarts = Restarts()
    deadlines: Deadlines = Deadlines()
    checkpoints: Checkpoints | None = None
    kubernetes: Kubernetes | None = None

    @field_validator("name")
    @classmethod
    def _checked_name(cls, name: str) -> str:
        if name and not names.is_name(name):
            raise ValueError(f"must be {names.NAME_RULE}")
        return name

    @field_validator("args")
    @classmethod
    def _checked_args(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for arg, following in zip(args, (*args[1:], ""), strict=False):
            option, given, value = arg.partition("=")
            check_string("an argument", arg)
            if option.startswith("-") and holds_secret(option) and (value if given else following and not following.startswith("-")):
                raise ValueError(f"gives a secret with {option}, and everyone can read a command line; use an environment variable instead")
        return args

    @field_validator("env")
    @classmethod
    def _checked_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            check_variable(name)
            if value and holds_secret(name):
                raise ValueError(f"holds a secret in {name}; leave it out and set it where you start tfrun: workers inherit it")
            check_string(name, f"{name}={value}")
        return env

    @field_validator("task")
    @classmethod
    def _checked_task(cls, task: str | None) -> str | None:
        if task is None:
            return task
        if task in BUILTINS:
            raise ValueError(f"is the name of one of tfrun's own; write `builtin: {task}`")
        path = task.endswith(".py") and not task.startswith("-")
        if not path and not _is_dotted(task):
            raise ValueError("must be the path of a .py file, such as my_task.py, or a module's dotted name")
        check_string("it", task)
        return task

    @model_validator(mode="after")
    def _one_program(self) -> JobSpec:
        if sum(map(bool, (self.program, self.task, self.builtin))) != 1:
            raise ValueError("needs exactly one of program, task and builtin, such as `program: train.py`")
        kind, target = self.source()
        if kind == "module" and not _is_dotted(target):
            raise ValueError(f"has the program {self.program!r}; `-m` takes a module's dotted name, such as `-m package.module`")
        path = PurePosixPath(target)
        if self.code and (self.builtin or path.is_absolute() or ".." in path.parts):
            what, example = ("task", "my_task.py") if self.task else ("program", "train.py")
            raise ValueError(f"has the code {self.code} and no {what} in it; give its path from there, such as `{what}: {example}`")
        return self

    @model_validator(mode="after")
    def _settings_have_a_reader(self) -> JobSpec:
        unread = ["train"] if self.train else []
        unread += [f"checkpoints.{key}" for key in different(self.checkpoints) if key != "directory"] if self.checkpoints else []
        if self.program and unread:
            raise ValueError(
                f"has {unread[0]}, which only tfrun's entrypoint reads; write `task: my_task.py` in place of `program: {self.program}`"
            )
        return self

    def target(self) -> tuple[str, str]:
        """What is started: ("script", path) or ("module", dotted name)."""
        return self.source() if self.program else ("module", ENTRYPOINT)

    def source(self) -> tuple[str, str]:
        """What is the user's own, the program or the task, in the same form; the entrypoint where nothing is."""
        given = self.program or self.task or f"-m {ENTRYPOINT}"
        if given.startswith("-m "):
            return "module", given[3:].strip()
        return "module" if self.task and not given.endswith(".py") else "script", given

    def ships_code(self) -> bool:
        """Whether files of this machine go along to a cluster; an absolute path, a module and a builtin are the image's own."""
        kind, target = self.source()
        return bool(self.code) or (kind == "script" and not PurePosixPath(target).is_absolute())

    def shipped(self) -> JobSpec:
        """The same job where its files have been brought to: a script that comes without its folder has left its path behind."""
        if self.code or not self.ships_code():
            return self
        return self.model_copy(update={"task" if self.task else "program": PurePosixPath(self.source()[1]).name})

    def command(self) -> list[str]:
        """The words that the launcher of a worker's program takes: kind, target, arguments."""
        task = self.task or self.builtin
        settings = [part.words() for part in (self.train, self.checkpoints) if part]
        return [*self.target(), *(("--task", task) if task else ()), *(word for words in settings for word in words), *self.args]

    def named(self) -> JobSpec:
        """The same job, with a name made from the program where none is given."""
        return self if self.name else self.model_copy(update={"name": names.name_from(self.builtin or self.source()[1])})


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def make(fields: Any, origin: str) -> JobSpec:
    """A job from plain data. Raises InvalidJobError with one sentence that begins with `origin`."""
    if not isinstance(fields, dict):
        raise InvalidJobError(f"{origin} holds {_kind(fields)}; a job file is a mapping such as `program: train.py`")
    for key in fields:
        if not isinstance(key, str):
            raise InvalidJobError(f"{origin}: the key {key!r} is not text; put it in quotes")
    try:
        return JobSpec.model_validate(fields).named()
    except ValidationError as e:
        raise InvalidJobError(f"{origin}: {_sentence(e)}") from e


def _sentence(error: ValidationError) -> str:
    """The first problem: field, value, rule."""
    problems = error.errors(include_url=False)
    problem = next(
        (each for each in problems if each["type"] == "extra_forbidden"), problems[0]
    )  # a misspelt key makes another one missing
    where = _path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return _unknown_key(problem["loc"], where)
    if problem["type"] == SENTENCE:
        return f"{where}: {problem['msg']}"
    # A message of its own may hold what the job file does, such as braces, and is no template.
    known = _RULES.get(problem["type"])
    rule = known.format(**problem.get("ctx", {})) if known else problem["msg"].removeprefix("Value error, ")
    if not where:
        return f"the job {rule}"
    if problem["type"] == "missing":
        return f"{where} is missing; it {rule}"
    if rule.startswith(("sets ", "holds ", "has ", "gives ")):
        return f"{where} {rule}"
    return f"{where} is {_shown(problem['input'])}; it {rule}"


_RULES = {
    "missing": "is required",
    "int_type": "must be a whole number, without quotes",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": f"must be at most {{le}}; Kubernetes runs no more than {WORKER_LIMIT} workers in a job",
    "less_than": "must be less than {lt}",
    "greater_than": "must be more than {gt}",
    "finite_number": "must be a number, such as 1.0",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "literal_error": "must be one of {expected}",
    "tuple_type": 'must be a list, such as [--epochs, "5"]',
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "string_too_short": "must not be empty",
}


def _unknown_key(loc: tuple[int | str, ...], where: str) -> str:
    model: type[BaseModel] = JobSpec
    for part in loc[:-1]:
        model = _model_of(model, part)
    close = difflib.get_close_matches(str(loc[-1]), model.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the keys here are {', '.join(model.model_fields)}"
    return f"there is no key {where}; {hint}"


def _model_of(model: type[BaseModel], part: int | str) -> type[BaseModel]:
    """The model that a field's value, or each item of it, is to be; the same one where it is none."""
    if str(part) not in model.model_fields:
        return model  # an index of a list, a key of a mapping
    candidates = [model.model_fields[str(part)].annotation]
    while candidates:
        candidate = candidates.pop()
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
        candidates += get_args(candidate)
    return model


def _path(loc: tuple[int | str, ...]) -> str:
    """("args", 1) as args[1], ("restarts", "max") as restarts.max."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: Any) -> str:
    return {type(None): "nothing", list: "a list", str: "text"}.get(type(value), f"a {type(value).__name__}")


def is_job_file(program: str) -> bool:
    """Whether what was given as the program is a job file: scripts don't end so."""
    return PurePosixPath(program).suffix in (".yaml", ".yml")
