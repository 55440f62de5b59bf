"""What an agent reads from the kernel: memory left, what a process does, who its descendants are. Linux, standard library only."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

_TICKS = os.sysconf("SC_CLK_TCK")
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Activity:
    """stopped: the process is stopped by a signal (not by a debugger). busy: CPU seconds so far, its descendants' included."""

    stopped: bool
    busy: float


def activity(pid: int) -> Activity:
    """What a process and its descendants do; nothing at all if it is gone."""
    stopped, busy = False, 0.0
    for process in (pid, *descendants(pid)):
        fields = _stat(process)
        if fields:
            stopped = stopped or (process == pid and fields[0] == "T")
            busy += sum(map(int, fields[11:15])) / _TICKS  # user and system time, own and of children already waited for
    return Activity(stopped, busy)


def name(pid: int) -> str:
    """The command name of a process, "?" if it is gone."""
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return "?"


def descendants(pid: int) -> List[int]:
    """The processes below this one, nearest first."""
    found, pending = [], [pid]
    while pending:
        below = list(_children(pending.pop()))
        found.extend(below)
        pending.extend(below)
    return found


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def _stat(pid: int) -> Optional[List[str]]:
    """The fields of /proc/PID/stat after the name, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()
    except OSError:
        return None


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as f:
            yield from map(int, f.read().split())


def memory_free() -> int:
    """Bytes that can still be used: of the machine, and of the memory limit (cgroup v1 or v2) that this process is under."""
    with open("/proc/meminfo") as f:
        fields = dict(line.split(":", 1) for line in f)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_cgroup_free()])


def memory_kills() -> int:
    """How many processes the kernel has ended for want of memory, under our limit where there is one, else on this machine."""
    for folder in _memory_groups():
        for file in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, file)) as f:
                counts = dict(line.split() for line in f if len(line.split()) == 2)
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
    with contextlib.suppress(OSError), open("/proc/vmstat") as f:
        return next((int(line.split()[1]) for line in f if line.startswith("oom_kill ")), 0)
    return 0


def _cgroup_free() -> Iterator[int]:
    for folder in _memory_groups():
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError):  # absent, or "max": no limit here
                yield _number(folder, limit) - _number(folder, used) + _reclaimable(folder, cache)


def _memory_groups() -> Iterator[str]:
    """The folders of our memory control group and those above it, nearest first."""
    for hierarchy, path in _groups():
        while True:
            yield os.path.join(hierarchy, path.strip("/"))
            if path in ("/", ""):
                break
            path = os.path.dirname(path)


def _groups() -> Iterator[Tuple[str, str]]:
    try:
        with open("/proc/self/cgroup") as f:
            lines = [line.rstrip("\n").split(":", 2) for line in f]
    except OSError:
        return
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            yield os.path.join(_CGROUPS, "memory"), path
        elif not controllers:
            yield _CGROUPS, path


def _number(folder: str, file: str) -> int:
    with open(os.path.join(folder, file)) as f:
        return int(f.read())


def _reclaimable(folder: str, field: str) -> int:
    """Bytes of file cache that the kernel gives back before it kills anything."""
    with open(os.path.join(folder, "memory.stat")) as f:
        return next((int(line.split()[1]) for line in f if line.startswith(field + " ")), 0)
