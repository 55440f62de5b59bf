"""`make cluster` and `make cluster-down`: a real Kubernetes on this machine, for the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from tests.cluster import cluster
from tests.cluster.supervise import ClusterError


@click.group()
def main() -> None:
    """A real Kubernetes on this machine, for the tests."""


@main.command()
@click.option("--simulated", type=int, metavar="N", help="Also have N simulated nodes (kwok), on which pods only seem to run.")
def up(simulated: int | None) -> None:
    """Install what is missing, build, start; does only what is not done yet."""
    cluster.up(click.echo, simulated)


@main.command()
def down() -> None:
    """Stop everything and remove it; programs and images that were built stay for the next time."""
    cluster.down()


def _run(command: Callable[[], object]) -> int:
    try:
        command()
    except ClusterError as e:
        click.echo(f"cluster: {e}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_run(main))
