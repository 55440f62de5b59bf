"""What the parts of a job file are made of: types whose checks say the rule."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

# Set for every worker by tfrun, Kubernetes or GKE; a job that sets them would break its own group.
RESERVED = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
_RESERVED_PREFIX = "TFRUN_"
STRING_LIMIT = 131_072  # bytes of one argument, or of one variable with its name, and the NUL after it: Linux's MAX_ARG_STRLEN
_SECRET = re.compile(r"(?:^|[-_])(?:password|passwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)$", re.IGNORECASE)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DNS_LABEL = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+\Z")


class Part(BaseModel):
    """A mapping of the job file; keys that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def seconds(value: Any) -> float:
    """A duration such as 90s or 1h30m in seconds. Raises ValueError with the rule."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be a duration such as 90s, 10m or 1h30m")
    if isinstance(value, (int, float)):
        found = float(value)
    elif _DURATION.match(value):
        found = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", value))
    else:
        raise ValueError("must be a duration such as 90s, 10m or 1h30m")
    if not 0 < found <= 365 * 86400:
        raise ValueError("must be more than nothing and at most a year")
    return found


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.match(text):
        raise ValueError("must be lower-case letters, digits and '-', at most 63 characters, as Kubernetes names things")
    return text


_DURATION_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": rf"^{_DURATION.pattern[:-2]}$"}]}
Duration = Annotated[float, BeforeValidator(seconds), WithJsonSchema(_DURATION_SCHEMA)]
Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]
Label = Annotated[Text, AfterValidator(_dns_label)]
SENTENCE = "sentence"  # the type of a refusal that is one already


def refusal(sentence: str) -> PydanticCustomError:
    """For a validator to raise: a whole sentence, before which only the field's path is put."""
    return PydanticCustomError(SENTENCE, "{sentence}", {"sentence": sentence})


def check_variable(name: str) -> None:
    """Raise ValueError for a name that no environment variable can have, or that is not the job's to set."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"has the name {name!r}; a variable's name is letters, digits and '_', not beginning with a digit")
    if name in RESERVED or name.startswith(_RESERVED_PREFIX):
        raise ValueError(f"sets {name}, which tfrun sets for each worker; remove it")


def check_string(what: str, text: str) -> None:
    """Raise ValueError for what can't be an argument, or a variable written as NAME=VALUE."""
    if "\0" in text:
        raise ValueError(f"has a NUL character in {what}")
    size = len(text.encode(errors="surrogatepass")) + 1
    if size > STRING_LIMIT:
        raise ValueError(f"has {size:,} bytes in {what}, and Linux takes at most {STRING_LIMIT:,} in one argument or variable; use a file")


def holds_secret(name: str) -> bool:
    """Whether an option or a variable of this name is for a secret."""
    return bool(_SECRET.search(name))
