"""What a TPU slice takes: its node pool as a command to read and run, what it costs, and what tfrun makes for it. Pure; asks no cloud.

The command's flags are in gcloud's reference of `container node-pools create`. That a node pool of one host gets no --tpu-topology, and
what flex-start needs, is as in Google's pages and in xpk (capacity.py, nodepool.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import tables, tpu
from orchestrator.errors import InvalidJobError
from orchestrator.tpu_table import ACCELERATORS, NO, TABLE, Slice

SHOWN_LIMIT = 256  # chips: larger slices are only listed where everything is
_COLUMNS = ("accelerator", "topology", "chips", "hosts", "chips/host", "machine type", "tpu", "tensorflow")
_WIDE = (*_COLUMNS, "cloud tpu", "flex-start", "named", "sources")
_NOTES = (
    "ACCELERATOR and TOPOLOGY are the values of the node labels " + f"{tpu.ACCELERATOR_LABEL} and {tpu.TOPOLOGY_LABEL}.",
    "TENSORFLOW: documented, unconfirmed, experimental (several hosts), or no. Nothing of it was tried; docs/tpu.md says what is known.",
)


@dataclass(frozen=True)
class Capacity:
    """Where the machines come from: on demand, unless one of these is given."""

    spot: bool = False
    reservation: str | None = None
    flex_start: bool = False

    def check(self, one: Slice) -> None:
        """Raise InvalidJobError for what does not exist, or not for this slice."""
        if self.spot + self.flex_start + (self.reservation is not None) > 1:
            raise InvalidJobError(
                "--spot, --reservation and --flex-start exclude each other; give one of them, or none for machines on demand"
            )
        if self.reservation is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", self.reservation):
            raise InvalidJobError(
                f"{self.reservation!r} is no name of a reservation: lower-case letters, digits and '-', at most 63 characters"
            )
        if self.flex_start and not one.accelerator.flex_start:
            can = ", ".join(a.label for a in ACCELERATORS if a.flex_start and a.tensorflow != NO)
            raise InvalidJobError(f"GKE's flex-start does not provide {one.accelerator.label}, only {can}; leave --flex-start out")

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
            return {"cloud.google.com/reservation-name": self.reservation}
        if self.flex_start:
            return {"cloud.google.com/gke-flex-start": "true"}
        return {"cloud.google.com/gke-spot": "true"} if self.spot else {}

    def terms(self) -> str:
        """What is special about the price, and about how long the machines stay."""
        if self.reservation is not None:
            return f"the terms of the reservation {self.reservation} decide what it costs, also while nothing runs"
        if self.flex_start:
            return "flex-start is cheaper, begins when the machines are free, and ends after at most 7 days"
        if self.spot:
            return "spot is cheaper, and Google may take the machines at any time: checkpoint often"
        return "on demand is the full price; Google may still take the machines for maintenance, and TPU machines can't move while they run"


def listing(output: str, terminal: bool) -> str:
    """Every slice in the table, as the option --output says; without one, a table that leaves the largest out."""
    if output in ("json", "yaml"):
        return tables.dumped([_record(one) for one in TABLE], output)
    wide = output == "wide"
    shown = [one for one in TABLE if wide or one.chips <= SHOWN_LIMIT]
    drawn = tables.table(_WIDE if wide else _COLUMNS, [_cells(one) for one in shown], terminal)
    left_out = [f"{len(TABLE) - len(shown)} slices of more than {SHOWN_LIMIT} chips are only in `tfrun tpu -o wide`."] if not wide else []
    return drawn + "".join(f"{note}\n" for note in (*_NOTES, *left_out)) if terminal else drawn


def document(one: Slice, capacity: Capacity) -> dict[str, Any]:
    """The plan, for a program. Raises InvalidJobError."""
    capacity.check(one)
    return {
        **_record(one),
        "pods": one.pods,
        "resources": tpu.resources(one),
        "nodeSelector": {**tpu.node_selector(one), **capacity.node_selector()},
        "tolerations": [tpu.TOLERATION],
        "nodePool": command(one, capacity),
        "cost": _cost(one, capacity),
        "rendered": _rendered(one),
        "unknown": _unknown(one),
    }


def text(one: Slice, capacity: Capacity) -> str:
    """The plan, for people. Raises InvalidJobError."""
    plan = document(one, capacity)
    each = f"{one.chips_per_host} chip{'s' * (one.chips_per_host > 1)}"
    facts = [
        (
            "slice",
            f"{plan['accelerator']} {plan['topology']}: TPU {plan['generation']}, {one.chips} chips; Cloud TPU calls it {one.cloud_name}",
        ),
        ("hosts", f"{one.hosts} of {one.machine}, {each} in each"),
        ("pods", f"{one.pods}, each with {tpu.RESOURCE}: {one.chips_per_host}, all chips of its host"),
        *_indented("labels", [f"{key}: {_quoted(value)}" for key, value in plan["nodeSelector"].items()]),
        ("tensorflow", f"{plan['tensorflow']['support']}: {plan['tensorflow']['why']}"),
    ]
    head = "".join(f"{name:<12}{value}\n" for name, value in facts)
    pool = "\n".join(("The node pool (the words in capitals are yours to fill in):", "", _continued(plan["nodePool"])))
    parts = (
        ("Cost:", plan["cost"]),
        ("What a job file will render (it cannot yet):", plan["rendered"]),
        ("Not known, since nothing of this ran on a TPU:", plan["unknown"]),
    )
    return "\n".join((head, f"{pool}\n", *(f"{title}\n" + "".join(f"- {line}\n" for line in lines) for title, lines in parts)))


def command(one: Slice, capacity: Capacity) -> list[str]:
    """What makes the node pool, word by word."""
    return [
        *("gcloud", "container", "node-pools", "create", "NODE_POOL"),
        *("--cluster=CLUSTER", "--location=LOCATION", "--node-locations=ZONE"),
        f"--machine-type={one.machine}",
        *([f"--tpu-topology={one.topology}"] if one.hosts > 1 else []),  # a single host has the topology of its machine type
        *capacity.flags(one),
    ]


def _cost(one: Slice, capacity: Capacity) -> list[str]:
    unit = "a slice is had as a whole or not at all" if one.hosts > 1 else "the smallest unit is one machine"
    lines = [
        f"{one.chips} chips × the hours that the node pool has its machines, with a job or without; a chip's price includes its host",
        f"{unit}; delete the node pool, or let it scale to 0, when nothing runs",
        capacity.terms(),
    ]
    if one.hosts > 1:
        lines.append(f"if one host fails, GKE makes all {one.hosts} anew: what all {one.chips} chips did since the last checkpoint is lost")
    return [*lines, "prices differ by region and change: https://cloud.google.com/tpu/pricing"]


def _rendered(one: Slice) -> list[str]:
    lines = [
        f"one Indexed Job: completions and parallelism {one.pods}, restartPolicy Never, a toleration of the nodes' taint {tpu.RESOURCE}",
        f"in each pod {tpu.RESOURCE}: {one.chips_per_host} as request and limit, and the labels above as nodeSelector",
    ]
    if one.hosts > 1:
        lines.append("a headless Service for the pods' names, and in each pod TPU_WORKER_ID and TPU_WORKER_HOSTNAMES")
        lines.append(
            f"if several node pools have this shape, select one with {tpu.NODE_POOL_LABEL}: pods of one Job may land on two of them"
        )
    return lines


def _unknown(one: Slice) -> list[str]:
    lines = []
    if not one.listed:
        lines.append("whether GKE offers this topology: it follows from a rule, and no source names it")
    if one.hosts > 1:
        lines.append("whether GKE keeps TPU_WORKER_ID and TPU_WORKER_HOSTNAMES where a job sets them itself")
    return [*lines, "whether your project has quota and your zone has these machines"]


def _indented(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if i == 0 else "", line) for i, line in enumerate(lines)]


def _quoted(value: str) -> str:
    """As YAML needs it, where labels are text."""
    return f'"{value}"' if value == "true" or value.isdigit() else value


def _continued(words: Sequence[str]) -> str:
    """A command over several lines, as a shell takes it."""
    flags = next(i for i, word in enumerate(words) if word.startswith("--"))
    return " \\\n    ".join((" ".join(words[:flags]), *words[flags:]))


def _record(one: Slice) -> dict[str, Any]:
    word, sentence = tpu.tensorflow(one)
    return {
        "accelerator": one.accelerator.label,
        "topology": one.topology,
        "generation": one.accelerator.generation,
        "cloudTpuName": one.cloud_name,
        "chips": one.chips,
        "hosts": one.hosts,
        "chipsPerHost": one.chips_per_host,
        "machineType": one.machine,
        "nodeSelector": tpu.node_selector(one),
        "tensorflow": {"support": word, "why": sentence},
        "flexStart": one.accelerator.flex_start,
        "named": one.listed,
        "sources": list(one.accelerator.sources),
    }


def _cells(one: Slice) -> tables.Row:
    known = one.accelerator
    named, flex_start = ("yes" if flag else "no" for flag in (one.listed, known.flex_start))
    narrow = (known.label, one.topology, one.chips, one.hosts, one.chips_per_host, one.machine, known.generation, tpu.tensorflow(one)[0])
    return dict(zip(_WIDE, (*narrow, one.cloud_name, flex_start, named, ", ".join(known.sources)), strict=True))
