"""Where a TPU slice's machines come from. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import InvalidJobError
from orchestrator.tpu_table import ACCELERATORS, NO, Slice

SPOT_LABEL, FLEX_START_LABEL = "cloud.google.com/gke-spot", "cloud.google.com/gke-flex-start"
RESERVATION_LABEL = "cloud.google.com/reservation-name"
LABELS = (SPOT_LABEL, FLEX_START_LABEL, RESERVATION_LABEL)


@dataclass(frozen=True)
class Capacity:
    """On demand, unless one of these is given."""

    spot: bool = False
    reservation: str | None = None
    flex_start: bool = False

    def check(self, one: Slice) -> None:
        """Raise InvalidJobError for what does not exist, or not for this slice."""
        if self.spot + self.flex_start + (self.reservation is not None) > 1:
            raise InvalidJobError("spot, reservation and flex-start exclude each other; give one of them, or none for machines on demand")
        if self.reservation is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", self.reservation):
            raise InvalidJobError(
                f"{self.reservation!r} is no name of a reservation: lower-case letters, digits and '-', at most 63 characters"
            )
        if self.flex_start and not one.accelerator.flex_start:
            can = ", ".join(a.label for a in ACCELERATORS if a.flex_start and a.tensorflow != NO)
            raise InvalidJobError(f"GKE's flex-start does not provide {one.accelerator.label}, only {can}; leave flex-start out")

    def flags(self, one: Slice) -> list[str]:
        """Of `gcloud container node-pools create`."""
        if self.flex_start:  # the autoscaler brings the machines, all at once, when pods wait for them
            scaling = ["--enable-autoscaling", "--num-nodes=0", "--min-nodes=0", f"--max-nodes={one.hosts}"]
            return ["--flex-start", "--reservation-affinity=none", *scaling]
        nodes = [f"--num-nodes={one.hosts}"]
        if self.reservation is not None:
            return [*nodes, "--reservation-affinity=specific", f"--reservation={self.reservation}"]
        return [*nodes, "--spot"] if self.spot else nodes

    def node_selector(self) -> dict[str, str]:
        """The labels of such nodes."""
        if self.reservation is not None:
            return {RESERVATION_LABEL: self.reservation}
        if self.flex_start:
            return {FLEX_START_LABEL: "true"}
        return {SPOT_LABEL: "true"} if self.spot else {}

    def terms(self) -> str:
        """What is special about the price, and about how long the machines stay."""
        if self.reservation is not None:
            return f"the terms of the reservation {self.reservation} decide what it costs, also while nothing runs"
        if self.flex_start:
            return "flex-start is cheaper, begins when the machines are free, and ends after at most 7 days"
        if self.spot:
            return "spot is cheaper, and Google may take the machines at any time: checkpoint often"
        return "on demand is the full price; Google may still take the machines for maintenance, and TPU machines can't move while they run"
