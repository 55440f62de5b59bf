"""What the machine must be and have, and that it holds one cluster at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.cluster import layout
from tests.cluster.supervise import ClusterError, Supervisor

PACKAGES = {  # a program → the Debian package that brings it
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "/usr/sbin/nft": "nftables",
    "/usr/sbin/ip": "iproute2",
    "/usr/bin/buildah": "buildah",
    "/usr/sbin/debootstrap": "debootstrap",
}
CLAIM = Path("/run") / f"{layout.NAME}-cluster"  # a link to the state of the one cluster of this machine
LINKS_DEADLINE = 10.0  # seconds
_SETTINGS = Path("/proc/sys")
_CHANGED = (  # by us and by the kubelet, put back at the end
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_MADE = (  # folders with a fixed place that containerd, CNI and the kubelet make where they are not
    "/run/containerd",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/opt/containerd",
)
_BEFORE = layout.STATE / "before.json"


def check() -> None:
    """Raise ClusterError where no cluster can be."""
    if sys.platform != "linux":
        raise ClusterError(f"this machine runs {sys.platform}, and a node needs Linux; use another cluster with TFRUN_TEST_KUBECONFIG")
    if os.geteuid() != 0:
        raise ClusterError("the cluster's node makes control groups, mounts and network links, which only root may; run it as root")


def install(say: Callable[[str], None]) -> None:
    """Install what is missing, with apt."""
    missing = [package for program, package in PACKAGES.items() if not Path(program).exists()]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ClusterError(f"{', '.join(missing)} is missing and there is no apt-get here; install it")
    say(f"installing Debian packages: {' '.join(missing)}")
    # Their services are not to be started: the cluster starts programs of its own.
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", "--quiet", *command], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"apt-get {command[0]} failed: {done.stderr.strip()[-1000:]}")


def claim(state: Path = layout.STATE, link: Path = CLAIM) -> None:
    """Take the machine for the cluster of this checkout. Raises ClusterError if another one's is up."""
    with suppress(OSError):
        owner = link.readlink()
        supervisor = Supervisor(owner)
        if owner != state and any(supervisor.process(name) for name in supervisor.names()):
            raise ClusterError(
                f"this machine holds one test cluster, and that of {owner.parent} is up; run `make cluster-down` there first"
            )
    link.unlink(missing_ok=True)
    link.symlink_to(state)


def prepare() -> None:
    """Note what is to be put back, and let packets pass between pods."""
    layout.STATE.mkdir(exist_ok=True, mode=0o700)
    if not _BEFORE.exists():
        settings = {name: (_SETTINGS / name).read_text() for name in _CHANGED if (_SETTINGS / name).exists()}
        there = [path for path in _MADE if Path(path).exists()]
        _BEFORE.write_text(json.dumps({"settings": settings, "there": there, "links": _links()}))
    (_SETTINGS / "net/ipv4/ip_forward").write_text("1")


def release() -> None:
    """Put everything back as it was, remove the state, and give the machine free. Raises ClusterError if something stays behind."""
    for mount in _mounts_below(layout.STATE):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    left = []
    if _BEFORE.exists():
        before = json.loads(_BEFORE.read_text())
        for name, value in before["settings"].items():
            (_SETTINGS / name).write_text(value)
        for path in set(_MADE) - set(before["there"]):
            shutil.rmtree(path, ignore_errors=True)
        left = [f"the network link {link}" for link in _links_gone(before["links"])]
    if layout.STATE.exists():
        shutil.rmtree(layout.STATE)
    with suppress(OSError):
        if CLAIM.readlink() == layout.STATE:
            CLAIM.unlink()
    left += [f"the mount {mount}" for mount in _mounts_below(layout.STATE)]
    left += [f"the process {process.pid} ({process.name()})" for process in _our_processes()]
    if left:
        raise ClusterError(f"the cluster is down, but this stayed behind: {', '.join(left)}")


def _links() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def _links_gone(before: list[str]) -> list[str]:
    """The links that are more than before, after the kernel had time to remove those of ended pods."""
    deadline = time.monotonic() + LINKS_DEADLINE
    while left := sorted(set(_links()) - set(before)):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return []


def _our_processes() -> list[psutil.Process]:
    """Everything that runs a program of ours, or has to do with the state."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if f"{layout.BIN}/" in words or f"{layout.STATE}/" in words:
                found.append(process)
    return found


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[1].encode().decode("unicode_escape") for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((point for point in points if Path(point).is_relative_to(folder)), reverse=True)
