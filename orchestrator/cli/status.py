"""`tfrun status`: where a job and each of its workers are."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster, output


@click.command()
@click.argument("name")
@output
@of_a_cluster
def status(access: Access, name: str, output: str | None) -> None:
    """Show where the job NAME is, and each of its workers."""
    from orchestrator import verbs  # late: the client is heavy

    click.echo(verbs.status(access, name, output or ""), nl=False)
