"""What the parts of a job file are made of: types whose checks say the rule."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# Set for every worker by tfrun, Kubernetes or GKE; a job that sets them would break its own group.
RESERVED = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
_RESERVED_PREFIX = "TFRUN_"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+\Z")


class Part(BaseModel):
    """A mapping of the job file; keys that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be a duration such as 90s, 10m or 1h30m")
    if isinstance(value, (int, float)):
        seconds = float(value)
    elif _DURATION.match(value):
        seconds = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", value))
    else:
        raise ValueError("must be a duration such as 90s, 10m or 1h30m")
    if not 0 < seconds <= 365 * 86400:
        raise ValueError("must be more than nothing and at most a year")
    return seconds


Duration = Annotated[float, BeforeValidator(_seconds)]
Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]


def check_variable(name: str) -> None:
    """Raise ValueError for a name that no environment variable can have, or that is not the job's to set."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"has the name {name!r}; a variable's name is letters, digits and '_', not beginning with a digit")
    if name in RESERVED or name.startswith(_RESERVED_PREFIX):
        raise ValueError(f"sets {name}, which tfrun sets for each worker; remove it")
