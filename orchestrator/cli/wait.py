"""`tfrun wait`: until a job is over."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.option("--timeout", metavar="TIME", help="Give up after so long, such as 10m, with exit code 4.")
@click.argument("name")
@of_a_cluster
def wait(access: Access, name: str, timeout: str | None) -> int:
    """Wait until the job NAME is over; the exit code is the job's."""
    from orchestrator import verbs  # late: the client is heavy
    from orchestrator.fields import seconds

    try:
        limit = None if timeout is None else seconds(timeout)
    except ValueError as e:
        raise click.BadParameter(f"{timeout!r} {e}.", param_hint="--timeout") from e
    return verbs.wait(access, name, limit)
