"""All the benchmarks, or those that are named: python -m benchmarks [NAME ...] [--runs N].

Those whose name begins with cluster_ need the cluster of `make cluster`. Without names they run where it is up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.cluster import cluster
from benchmarks.peer import torchrun

LOCAL = (
    *("help", "start", "first_step", "recovery_kill", "recovery_stop"),
    *("never_joins", "output", "rendezvous", "false_alarms", "render", "train_speed", "train_checkpoint"),
)
ON_A_CLUSTER = (
    *("cluster_start", "cluster_recovery_kill", "cluster_recovery_evict", "cluster_controller_loss"),
    *("cluster_node_lost", "cluster_api_writes", "cluster_1000"),
)
NAMES = (*LOCAL, *ON_A_CLUSTER)


def main() -> int:
    """Run one after the other, each in a process of its own. Returns 1 if one of them broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; default: all that can run")
    parser.add_argument("--runs", type=int, help="default: each one's own, 10 for most")
    given = parser.parse_args()
    unknown = set(given.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    names = _possible(given.names)
    if set(names) & set(LOCAL):
        torchrun()  # installs it if need be, before anything is measured
    runs = ["--runs", str(given.runs)] if given.runs else []
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *runs], check=False).returncode for name in names]
    return int(any(codes))


def _possible(names: Sequence[str]) -> Sequence[str]:
    """The names, or all that can run here. Ends with the reason if one that was named can't."""
    reason = cluster().missing() if not names or set(names) & set(ON_A_CLUSTER) else ""
    if not reason:
        return names or NAMES
    if names:
        sys.exit(f"benchmarks: {reason}")
    print(f"without {', '.join(ON_A_CLUSTER)}: {reason}", file=sys.stderr)
    return LOCAL


if __name__ == "__main__":
    sys.exit(main())
