"""The command line: one verb a file; each parses, calls one library function, and prints."""

from __future__ import annotations

import sys

import click

import orchestrator
from orchestrator.cli.controller import controller
from orchestrator.cli.render import render
from orchestrator.cli.run import run
from orchestrator.errors import TfrunError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(orchestrator.__version__, prog_name="tfrun")
def tfrun() -> None:
    """Run one TensorFlow training program on many workers."""


tfrun.add_command(run)
tfrun.add_command(render)
tfrun.add_command(controller)


def main() -> None:
    """Run the command line; an error of ours is one line and an exit code."""
    try:
        sys.exit(tfrun.main(standalone_mode=False, prog_name="tfrun") or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except TfrunError as e:
        click.echo(f"tfrun: {e}", err=True)
        sys.exit(e.exit_code)
