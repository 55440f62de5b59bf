"""`tfrun list`: the jobs of a namespace."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster, output


@click.command("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of every namespace.")
@output
@of_a_cluster
def jobs(access: Access, all_namespaces: bool, output: str | None) -> None:
    """List the jobs that are there, those that are over among them."""
    from orchestrator import verbs  # late: the client is heavy

    click.echo(verbs.jobs(access, all_namespaces, output or ""), nl=False)
