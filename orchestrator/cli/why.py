"""`tfrun why`: what a job waits for, or why it ended."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.argument("name")
@of_a_cluster
def why(access: Access, name: str) -> None:
    """Say in plain words what the job NAME waits for or why it ended, and what to do next."""
    from orchestrator import verbs  # late: the client is heavy

    click.echo(verbs.why(access, name))
