"""The job file's part about the training entrypoint, and the words of `worker_image.train` that it becomes. Plain data, checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from orchestrator.fields import Count, Duration, Part, Text, check_string

_LIMIT = 2**31  # TensorFlow counts in 32 bits in places, and fails there without a word of why


def _word(text: str) -> str:
    """A value that no parser of arguments takes for an option."""
    if not text or text.startswith("-"):
        raise ValueError("must not be empty nor begin with '-'")
    check_string("it", text)
    return text


def _increasing(value: Any) -> tuple[int, int]:
    whole = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(number) is int for number in value)
    if not whole or not 0 < value[0] < value[1] < _LIMIT:
        raise ValueError("must be two increasing numbers, the first and the last step, such as [100, 110]")
    return value[0], value[1]


Word = Annotated[Text, AfterValidator(_word)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=_LIMIT)]
Natural = Annotated[Count, Field(lt=_LIMIT)]
Flag = Annotated[bool, Field(strict=True)]
_STEPS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
Steps = Annotated[tuple[int, int], BeforeValidator(_increasing), WithJsonSchema(_STEPS_SCHEMA)]


class Profile(Part):
    """A profile of some steps, for TensorBoard."""

    steps: Steps


class Train(Part):
    """Settings of the training entrypoint, for jobs with `task` or `builtin`."""

    epochs: Positive = 10
    batch_size: Positive = 32
    loop: Literal["custom", "fit"] = "custom"
    steps_per_call: Natural = 0
    accumulate: Positive = 1
    clip_norm: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    jit_compile: Flag = False
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    seed: Natural = 0
    deterministic: Flag = False
    check_numerics: Flag = False
    cache: Literal["auto", "yes", "no"] = "auto"
    drop_remainder: Flag = False
    communication: Literal["auto", "ring", "nccl"] = "auto"
    evaluate_epochs: Natural = 0
    tensorboard: Word | None = None
    profile: Profile | None = None
    export: Word | None = None

    @model_validator(mode="after")
    def _profile_has_a_place(self) -> Train:
        if self.profile and not self.tensorboard:
            raise ValueError("has a profile and no directory for it; add tensorboard, such as `tensorboard: /data/tb`")
        return self

    def words(self) -> list[str]:
        """The options of `worker_image.train`: of what differs from its own defaults."""
        return list(_words({f"--{key.replace('_', '-')}": value for key, value in different(self).items()}))


class Checkpoints(Part):
    """Where checkpoints go, which other programs find in TFRUN_CHECKPOINT_DIR; when, and how many, is for the training entrypoint."""

    directory: Word
    steps: Natural = 0
    every: Duration | None = None
    keep: Positive = 3
    best: Word | None = None

    def words(self) -> list[str]:
        """As Train.words; the directory is told by the environment."""
        options = {"steps": "--checkpoint-steps", "every": "--checkpoint-seconds", "keep": "--keep", "best": "--best"}
        found = different(self)
        return list(_words({option: found[key] for key, option in options.items() if key in found}))


def different(part: Part) -> dict[str, Any]:
    """The values that are not the defaults, in the order of the fields."""
    fields = type(part).model_fields
    return {key: value for key, value in part if value != fields[key].default}


def _words(options: dict[str, Any]) -> Iterator[str]:
    for option, value in options.items():
        yield option
        if value is not True:  # a flag has no value
            yield _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Profile):
        return "{}:{}".format(*value.steps)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # the shortest that says the same
    return str(value)
