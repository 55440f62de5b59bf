"""The job file's part about Kubernetes: what the pods are to have. Plain data, checked; knows no cluster."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from orchestrator import names
from orchestrator.fields import Duration, Label, Part, Text, check_variable
from orchestrator.tpu_spec import Tpu

GRACE = 30  # seconds from SIGTERM to SIGKILL: the time for a save
TIME_TO_LIVE = 86400.0  # seconds after the end in which the objects of a job stay, for whoever asks why
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_SUFFIXES = {"": 0, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|)\Z")


def amount(quantity: str) -> Decimal:
    """A Kubernetes quantity as a number: "500m" is 0.5, "1Gi" is 1073741824. Raises ValueError."""
    found = _QUANTITY.match(quantity)
    if not found:
        raise ValueError('must be a Kubernetes quantity, such as "4", "500m", 8Gi or 2G')
    number, suffix = Decimal(found[1]), found[2]
    return number * 2 ** _BINARY[suffix] if suffix in _BINARY else number.scaleb(_SUFFIXES[suffix])


def _checked_quantity(quantity: str) -> str:
    if amount(quantity) <= 0:
        raise ValueError("must be more than nothing")
    return quantity


def _checked_memory(quantity: str) -> str:
    if amount(_checked_quantity(quantity)) < 2**20:
        raise ValueError("is less than a megabyte; the unit is missing or wrong, such as 8Gi")
    return quantity


def _dns_name(text: str) -> str:
    if not _DNS_NAME.match(text):
        raise ValueError("must be lower-case letters, digits, '-' and '.', at most 253 characters, as Kubernetes names things")
    return text


def _image(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][\w.:/@-]*", text) or text.endswith(("/", ":", "@")):
        raise ValueError("must be the name of an image, such as registry.example/team/train:1.2")
    return text


def _mount(path: str) -> str:
    if not path.startswith("/") or ":" in path or ".." in path.split("/") or path.rstrip("/") in ("", names.MOUNT, "/tmp"):  # noqa: S108 # refused
        raise ValueError(f"must be an absolute path of its own, not / nor /tmp nor {names.MOUNT}")
    return path


Quantity = Annotated[Text, AfterValidator(_checked_quantity)]
Memory = Annotated[Text, AfterValidator(_checked_memory)]
Name = Annotated[Text, AfterValidator(_dns_name)]
Image = Annotated[Text, AfterValidator(_image)]
Mount = Annotated[Text, AfterValidator(_mount)]


class Resources(Part):
    """What each worker gets; it is both its request and its limit. memory has to be given, or one worker can take a whole node's."""

    cpu: Quantity = "1"
    memory: Memory
    gpu: Annotated[int, Field(strict=True, ge=0)] = 0
    shared_memory: Memory | None = None  # the size of /dev/shm; part of `memory`

    @model_validator(mode="after")
    def _fits(self) -> Resources:
        if self.shared_memory and amount(self.shared_memory) > amount(self.memory):
            raise ValueError(f"has a shared_memory of {self.shared_memory}, which is part of the memory of {self.memory}; give more memory")
        return self


class Volume(Part):
    """A PersistentVolumeClaim, mounted at `path` in every worker."""

    claim: Name
    path: Mount
    read_only: bool = False


class SecretVariable(Part):
    """An environment variable from a key of a Secret."""

    secret: Name
    key: Annotated[Text, Field(min_length=1)]


class Toleration(Part):
    """As in a pod."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Controller(Part):
    """The pod of the controller: an image made from the target `controller` of tfrun's Dockerfile."""

    image: Image
    cpu: Quantity = "200m"
    memory: Memory = "256Mi"


class Kubernetes(Part):
    """Where and how the job runs on a cluster."""

    image: Image
    resources: Resources
    controller: Controller | None = None  # only a static set does without
    namespace: Label = "default"
    volumes: tuple[Volume, ...] = ()
    secrets: dict[str, SecretVariable] = Field(default_factory=dict)
    node_selector: dict[str, Text] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: Name | None = None
    service_account: Name | None = None
    pull_secrets: tuple[Name, ...] = ()
    spot: bool = False
    tpu: Tpu | None = None  # after what it is checked with
    time_to_live: Duration = TIME_TO_LIVE
    pod: dict[str, Any] = Field(default_factory=dict)

    @field_validator("tpu")
    @classmethod
    def _checked_tpu(cls, tpu: Tpu | None, info: ValidationInfo) -> Tpu | None:
        if tpu and {"resources", "spot", "node_selector"} <= set(info.data):  # what is wrong by itself is told first
            tpu.check_beside(info.data["resources"].gpu, info.data["spot"], info.data["node_selector"])
        return tpu

    @field_validator("secrets")
    @classmethod
    def _checked_secrets(cls, secrets: dict[str, SecretVariable]) -> dict[str, SecretVariable]:
        for name in secrets:
            check_variable(name)
        return secrets

    @field_validator("volumes")
    @classmethod
    def _checked_volumes(cls, volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
        paths = [volume.path.rstrip("/") for volume in volumes]
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"has two volumes at {path}; give each a path of its own")
        return volumes
