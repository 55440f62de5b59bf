"""`tfrun stop`: the end of a job."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.option("--now", is_flag=True, help="Don't let the programs save first.")
@click.argument("name")
@of_a_cluster
def stop(access: Access, name: str, now: bool) -> None:
    """Let the programs of the job NAME save and end, then remove everything of it."""
    from orchestrator import verbs  # late: the client is heavy

    verbs.stop(access, name, now)
