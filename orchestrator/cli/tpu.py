"""`tfrun tpu`: which TPU slices there are, and what one of them takes."""

from __future__ import annotations

import click

from orchestrator.cli.options import output


@click.group(invoke_without_command=True)
@output
@click.pass_context
def tpu(context: click.Context, output: str | None) -> None:
    """List the TPU slices that GKE has node pools for; `tfrun tpu plan` says what one takes."""
    if context.invoked_subcommand:
        return
    from orchestrator import tables, tpu_plan  # late: `tfrun --help` needs nothing of it

    click.echo(tpu_plan.listing(output or "", tables.is_terminal()), nl=False)


@tpu.command()
@click.option("--accelerator", required=True, metavar="NAME", help="As in the node label, such as tpu-v5-lite-podslice.")
@click.option("--topology", required=True, metavar="AxB", help="The arrangement of the chips, such as 4x4 or 2x2x2.")
@click.option("--chips-per-pod", type=int, metavar="K", help="Where a topology comes in two forms.")
@click.option("--slices", type=int, default=1, metavar="N", help="A training has one; more are refused, with what to do instead.")
@click.option("--spot", is_flag=True, help="On spot machines.")
@click.option("--reservation", metavar="NAME", help="On machines of this reservation.")
@click.option("--flex-start", is_flag=True, help="On machines for at most 7 days, when they are free.")
@click.option("-o", "--output", type=click.Choice(("json", "yaml")), default=None, help="For a program.")
def plan(
    accelerator: str,
    topology: str,
    chips_per_pod: int | None,
    slices: int,
    spot: bool,
    reservation: str | None,
    flex_start: bool,
    output: str | None,
) -> None:
    """Print what a slice takes: hosts, pods, labels, the node pool's command, cost. Nothing is made."""
    from orchestrator import tables, tpu, tpu_capacity, tpu_plan  # late: `tfrun --help` needs nothing of it

    found = tpu.find(accelerator, topology, chips_per_pod)
    tpu.check_slices(found, slices)
    capacity = tpu_capacity.Capacity(spot, reservation, flex_start)
    printed = tables.dumped(tpu_plan.document(found, capacity), output) if output else tpu_plan.text(found, capacity)
    click.echo(printed, nl=False)
