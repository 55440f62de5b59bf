"""What a TPU slice takes: its node pool as a command to read and run, what it costs, and what tfrun makes for it. Pure; asks no cloud.

The command's flags are in gcloud's reference of `container node-pools create`. That a node pool of one host gets no --tpu-topology, and
what flex-start needs, is as in Google's pages and in xpk (capacity.py, nodepool.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator import tables, tpu
from orchestrator.tpu_capacity import Capacity
from orchestrator.tpu_table import TABLE, Slice

SHOWN_LIMIT = 256  # chips: larger slices are only listed where everything is
_NOT_YET = "tfrun can't start TensorFlow's servers on several hosts"
_COLUMNS = ("accelerator", "topology", "chips", "hosts", "chips/host", "machine type", "tpu", "tensorflow")
_WIDE = (*_COLUMNS, "cloud tpu", "flex-start", "named", "sources")
_NOTES = (
    "ACCELERATOR and TOPOLOGY are the values of the node labels " + f"{tpu.ACCELERATOR_LABEL} and {tpu.TOPOLOGY_LABEL}.",
    "TENSORFLOW: documented, unconfirmed, experimental (several hosts), or no. Nothing of it was tried; docs/tpu.md says what is known.",
)


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
        "jobFile": job_file(one, capacity),
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
    asked = _job_file_lines(plan["jobFile"])
    code = {"The node pool (the words in capitals are yours to fill in):": [_continued(plan["nodePool"])]}
    code |= {"In the job file, beside kubernetes.image and kubernetes.resources:": asked} if asked else {}
    renders = "What that renders:" if asked else f"A job file can't ask for it yet, since {_NOT_YET}; it is to render:"
    parts = (
        ("Cost:", plan["cost"]),
        (renders, plan["rendered"]),
        ("Not known, since nothing of this ran on a TPU:", plan["unknown"]),
    )
    printed = ["\n".join((title, "", *lines, "")) for title, lines in code.items()]
    return "\n".join((head, *printed, *(f"{title}\n" + "".join(f"- {line}\n" for line in lines) for title, lines in parts)))


def command(one: Slice, capacity: Capacity) -> list[str]:
    """What makes the node pool, word by word."""
    return [
        *("gcloud", "container", "node-pools", "create", "NODE_POOL"),
        *("--cluster=CLUSTER", "--location=LOCATION", "--node-locations=ZONE"),
        f"--machine-type={one.machine}",
        *([f"--tpu-topology={one.topology}"] if one.hosts > 1 else []),  # a single host has the topology of its machine type
        *capacity.flags(one),
    ]


def job_file(one: Slice, capacity: Capacity) -> dict[str, Any] | None:
    """The keys of a job file that ask for it; None where no job file can."""
    if one.hosts > 1:
        return None
    tpu_: dict[str, Any] = {"accelerator": one.accelerator.label, "topology": one.topology}
    tpu_ |= {"chips_per_pod": one.chips_per_host} if tpu.is_ambiguous(one) else {}
    tpu_ |= {"reservation": capacity.reservation} if capacity.reservation is not None else {}
    tpu_ |= {"flex_start": True} if capacity.flex_start else {}
    return {"strategy": "tpu", "kubernetes": {"tpu": tpu_, **({"spot": True} if capacity.spot else {})}}


def _job_file_lines(asked: dict[str, Any] | None) -> list[str]:
    """The same as YAML, in lines; none where no job file can."""
    if not asked:
        return []
    plain = {key: _quoted(value) if isinstance(value, str) else json.dumps(value) for key, value in asked["kubernetes"]["tpu"].items()}
    pairs = ", ".join(f"{key}: {value}" for key, value in plain.items())
    spot = ["  spot: true"] if "spot" in asked["kubernetes"] else []
    return [f"strategy: {asked['strategy']}", "kubernetes:", f"  tpu: {{{pairs}}}", *spot]


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
    if one.hosts == 1:
        lines.append("TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, as GKE's device plugin sets them on one host")
    else:
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
    return f'"{value}"' if value in ("true", "false", "null") or value.isdigit() else value


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
