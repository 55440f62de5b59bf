"""The cluster's programs, built from pinned Go modules."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import layout
from tests.cluster.supervise import ClusterError

MODULES = layout.HERE / "go"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")


@dataclass(frozen=True)
class Module:
    """One pinned go.mod. programs: file name → package. version_of: the module whose version the programs are to report."""

    name: str
    programs: dict[str, str]
    version_of: str = ""


ALL = (
    Module(
        "kubernetes",
        {
            **{name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
            "etcd": "go.etcd.io/etcd/server/v3",
        },
        version_of="k8s.io/kubernetes",
    ),
    Module("coredns", {"coredns": "github.com/coredns/coredns"}),
    Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module("pause", {"pause": "."}),
)


def build(say: Callable[[str], None]) -> None:
    """Build what is missing or older than its sources. Raises ClusterError."""
    if not shutil.which("go"):
        raise ClusterError("there is no Go on this machine, and the cluster's programs are built with it; install Go 1.26 or newer")
    layout.BIN.mkdir(parents=True, exist_ok=True)
    for module in ALL:
        stamp = layout.BIN / f".{module.name}"
        wanted = _sources(module)
        if not stamp.exists() or stamp.read_text() != wanted:
            say(f"building {', '.join(module.programs)} (minutes the first time)")
            for program, package in module.programs.items():
                _go("build", "-trimpath", "-ldflags", _flags(module), "-o", str(layout.BIN / program), package, cwd=MODULES / module.name)
            stamp.write_text(wanted)


def _sources(module: Module) -> str:
    files = sorted(path for path in (MODULES / module.name).iterdir() if path.is_file())
    return hashlib.sha256(repr([(path.name, path.read_bytes()) for path in files] + [module.programs]).encode()).hexdigest()


def _flags(module: Module) -> str:
    flags = "-s -w"
    if module.version_of:  # what `git describe` tells a release build
        version = _go("list", "-m", "-f", "{{.Version}}", module.version_of, cwd=MODULES / module.name).strip()
        found = re.fullmatch(r"v(\d+)\.(\d+)\..*", version)
        assert found, version
        where = "k8s.io/component-base/version"
        flags += f" -X {where}.gitVersion={version} -X {where}.gitMajor={found[1]} -X {where}.gitMinor={found[2]}"
    return flags


def _go(*arguments: str, cwd: Path) -> str:
    environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`go {arguments[0]}` failed in {cwd}: {done.stderr.strip()[-2000:]}")
    return done.stdout
