"""`tfrun schema`: the job file, for editors."""

from __future__ import annotations

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of the job file, as editors take it."""
    from orchestrator.schema import text  # late: `tfrun --help` needs nothing of it

    click.echo(text(), nl=False)
