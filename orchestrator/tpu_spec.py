"""The job file's part about a TPU slice: which one, and what can't be beside it. Plain data, checked; knows no cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from orchestrator import tpu
from orchestrator.errors import InvalidJobError
from orchestrator.fields import Label, Part, Text, refusal
from orchestrator.tpu_capacity import LABELS, Capacity
from orchestrator.tpu_table import TABLE, Slice


class Tpu(Part):
    """A TPU slice of GKE on a single host; `tfrun tpu` lists the slices that there are."""

    accelerator: Text
    topology: Text
    chips_per_pod: Annotated[int, Field(strict=True)] | None = None
    node_pool: Label | None = None
    reservation: Text | None = None
    flex_start: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _has_one_host(self) -> Tpu:
        try:
            found = self.slice()
        except InvalidJobError as e:
            raise refusal(str(e)) from e
        if found.hosts > 1:
            raise refusal(_several_hosts(found))
        return self

    def slice(self) -> Slice:
        """The slice that is meant."""
        return tpu.find(self.accelerator, self.topology, self.chips_per_pod)

    def node_selector(self, spot: bool) -> dict[str, str]:
        """The labels of the nodes that may run the job: always the same ones, so a worker that is replaced stays in its pool."""
        pool = {tpu.NODE_POOL_LABEL: self.node_pool} if self.node_pool else {}
        return {**tpu.node_selector(self.slice()), **self._capacity(spot).node_selector(), **pool}

    def check_beside(self, gpu: int, spot: bool, node_selector: Mapping[str, str]) -> None:
        """Raise a refusal for what can't be true together with the rest of the part `kubernetes`."""
        if gpu:
            raise refusal(f"resources.gpu is {gpu}, and TPU machines have no GPU; remove one of the two")
        try:
            self._capacity(spot).check(self.slice())
        except InvalidJobError as e:
            raise refusal(str(e)) from e
        for label, value in node_selector.items():
            self._check_label(label, value, spot)

    def _capacity(self, spot: bool) -> Capacity:
        return Capacity(spot, self.reservation, self.flex_start)

    def _check_label(self, label: str, value: str, spot: bool) -> None:
        """A node that has it must be able to be one of the slice's."""
        capacity = self._capacity(spot).node_selector()
        if capacity and label in LABELS and label not in capacity:
            (ours,) = capacity
            raise refusal(f"node_selector has {label}, and no node also has {ours}, which the job asks for; remove one of the two")
        has = {**tpu.labels(self.slice()), **self.node_selector(spot)}.get(label, value)
        if has != value:
            raise refusal(f"node_selector has {label}: {value}, and the slice's nodes have {has}; remove it from node_selector")


def _several_hosts(one: Slice) -> str:
    alone = [other for other in TABLE if other.accelerator is one.accelerator and other.hosts == 1]
    shown = [f"{a.topology} with chips_per_pod: {a.chips_per_host}" if tpu.is_ambiguous(a) else a.topology for a in alone]
    topologies = f"topology {shown[0]} has" if len(shown) == 1 else f"topologies {' and '.join((', '.join(shown[:-1]), shown[-1]))} have"
    return (
        f"{one.accelerator.label} {one.topology} has {one.hosts} hosts, and tfrun can't start TensorFlow's servers on several hosts yet; "
        f"the {topologies} one host"
    )
