"""What the programs in pods tell, read from the nodes' own files so that nobody asks the API server, and where their processes are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import V1Pod

from benchmarks.training import await_standbys
from tests.cluster import faults, layout
from tests.cluster.objects import Namespace

PATIENCE = 180.0  # seconds without what must come
LAST = 12  # lines of a pod that are shown when something broke
MOMENT = 2.0  # seconds of training before the next fault
LOOK = 0.1  # seconds between two looks; what is measured is in the lines themselves
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One JSON line of a program, and the pod that printed it."""

    pod: str
    said: dict[str, Any]

    @property
    def at(self) -> float:
        """When, by the machine's monotonic clock."""
        return float(self.said["at"])


class Lines:
    """The JSON lines of all pods of a namespace, in the order in which they were found."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._read: dict[Path, int] = {}
        self.found: list[Line] = []

    def look(self) -> list[Line]:
        """All lines so far, also of pods that are gone."""
        for file in logs(self._namespace):
            self._read_on(file)
        return self.found

    def first_steps(self, after: float, workers: int = 2, patience: float = PATIENCE) -> dict[int, Line]:
        """Each worker's first step after a time, once all have made one. Raises TimeoutError."""
        deadline = time.monotonic() + patience
        while True:
            steps: dict[int, Line] = {}
            for line in self.look():
                if line.said["event"] == "first" and line.at > after:
                    steps.setdefault(line.said["worker"], line)
            if len(steps) == workers:
                return steps
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(steps)} of {workers} workers made a step\n{last_words(self._namespace)}")
            time.sleep(LOOK)

    def _read_on(self, file: Path) -> None:
        try:
            with file.open("rb") as log:
                log.seek(self._read.get(file, 0))
                new = log.read()
        except FileNotFoundError:  # the pod is gone
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read[file] = self._read.get(file, 0) + len(whole)
        pod = file.parents[1].name.split("_")[1]
        for line in whole.decode(errors="replace").splitlines():
            text = line.split(" ", 3)[3]  # after the time, the stream and a mark of containerd's
            if text.startswith('{"event"'):
                self.found.append(Line(pod, json.loads(text)))


def logs(namespace: Namespace, pod: str = "*") -> list[Path]:
    """The files with the output of a namespace's pods, or of one."""
    return [file for node in layout.NODES for file in (node.folder / "logs").glob(f"{namespace.name}_{pod}_*/*/*.log")]


def last_words(namespace: Namespace) -> str:
    """What each of its pods said last, for whoever reads why a benchmark broke."""
    shown = []
    for file in sorted(logs(namespace)):
        shown += [f"--- {file.parents[1].name.split('_')[1]}", *file.read_text(errors="replace").splitlines()[-LAST:]]
    return "\n".join(shown)


def until_it_gives_up(values: Iterator[T]) -> list[T]:
    """All that a peer gives: it may wait for longer each time, beyond all patience."""
    found = []
    with suppress(TimeoutError):
        for value in values:
            found.append(value)  # noqa: PERF402 # list() would lose them all
    return found


def program_of(namespace: Namespace, step: Line) -> tuple[V1Pod, int]:
    """The pod of the worker that made a step, and the machine's number of the process that did."""
    pod = namespace.pod(step.pod)
    for pid in faults.processes(pod):
        (inner,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
        if int(inner.split()[-1]) == step.said["pid"]:
            return pod, pid
    raise RuntimeError(f"the process {step.said['pid']} of {step.pod} is not there any more")


def settle(namespace: Namespace, steps: dict[int, Line], standby: bool) -> None:
    """Let a group train on: until an imported standby waits beside each of its programs, or for a moment where there are none."""
    if standby:
        await_standbys([program_of(namespace, step)[1] for step in steps.values()])
    else:
        time.sleep(MOMENT)
