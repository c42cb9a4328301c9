"""`evoclaw help`: the help of a command, as `--help` prints it."""

from __future__ import annotations

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand
from evoclaw.cli.output import print_out


@click.command("help", cls=CliCommand)
@click.argument("command", nargs=-1, help="The command, such as `runs watch`")
@click.pass_context
def help_command(context: click.Context, command: tuple[str, ...]) -> int:
    """Show help for a command."""
    at = context.find_root()
    for name in command:
        found = at.command.get_command(at, name) if isinstance(at.command, click.Group) else None
        if found is None:
            raise click.UsageError(f"No such command {' '.join(command)!r}", at)
        at = click.Context(found, parent=at, info_name=name)
    print_out(at.get_help())
    return exits.OK
