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
from orchestrator.fields import Count, Duration, Part, Text, check_string, check_variable, holds_secret
from orchestrator.kubernetes_spec import Kubernetes

WORKER_LIMIT = 100_000  # an Indexed Job takes no more: kubernetes.io/docs/concepts/workloads/controllers/job
BUILTINS = ("digits",)


class Restarts(Part):
    """How many failures of the program itself are forgiven: at most `max` within `within` seconds."""

    max: Count = 10
    within: Duration = 3600.0


class Deadlines(Part):
    """Seconds: until every worker is ready; of the whole run; without a step while every worker is idle."""

    start: Duration = 600.0
    run: Duration = 86400.0
    progress: Duration = 10.0


class Checkpoints(Part):
    """Where the training entrypoint keeps its checkpoints (TFRUN_CHECKPOINT_DIR for other programs)."""

    directory: Annotated[str, Field(strict=True, min_length=1)]


class JobSpec(Part):
    """A training job. Exactly one of `program` and `builtin` is given; `code` is the folder of the program and of what it imports."""

    name: str = ""
    program: Text | None = None
    code: Annotated[Text, Field(min_length=1)] | None = None
    builtin: Literal["digits"] | None = None
    args: tuple[Text, ...] = ()
    workers: Annotated[int, Field(strict=True, ge=1, le=WORKER_LIMIT)] = 1
    strategy: Literal["auto", "default", "mirrored", "multi_worker_mirrored", "tpu"] = "auto"
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

    @model_validator(mode="after")
    def _one_program(self) -> JobSpec:
        if bool(self.program) == bool(self.builtin):
            raise ValueError("needs exactly one of program and builtin, such as `program: train.py`")
        kind, target = self.target()
        if kind == "module" and not all(part.isidentifier() for part in target.split(".")):
            raise ValueError(f"has the program {self.program!r}; `-m` takes a module's dotted name, such as `-m package.module`")
        path = PurePosixPath(target)
        if self.code and (self.builtin or path.is_absolute() or ".." in path.parts):
            raise ValueError(f"has the code {self.code} and no program in it; give its path from there, such as `program: train.py`")
        return self

    def target(self) -> tuple[str, str]:
        """("script", path) or ("module", dotted name)."""
        if self.builtin:
            return "module", "worker_image.train"
        program = self.program or ""
        if program.startswith("-m "):
            return "module", program[3:].strip()
        return "script", program

    def ships_code(self) -> bool:
        """Whether files of this machine go along to a cluster; an absolute path, a module and a builtin are the image's own."""
        kind, target = self.target()
        return bool(self.code) or (kind == "script" and not PurePosixPath(target).is_absolute())

    def command(self) -> list[str]:
        """The words that the launcher of a worker's program takes: kind, target, arguments."""
        return [*self.target(), *(("--task", self.builtin) if self.builtin else ()), *self.args]

    def named(self) -> JobSpec:
        """The same job, with a name made from the program where none is given."""
        return self if self.name else self.model_copy(update={"name": names.name_from(self.builtin or self.target()[1].rpartition("/")[2])})


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
    rule = _RULES.get(problem["type"], problem["msg"]).format(**problem.get("ctx", {}))
    rule = rule.removeprefix("Value error, ")
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
