"""`evoclaw help`: the help of a command, as `--help` prints it."""

from __future__ import annotations

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand
from evoclaw.cli.output import print_out

EXIT_CODES = "exit-codes"
"""The topic about what the exit codes mean."""


@click.command("help", cls=CliCommand)
@click.argument("command", nargs=-1, help="The command, such as `runs watch`, or `exit-codes`")
@click.pass_context
def help_command(context: click.Context, command: tuple[str, ...]) -> int:
    """Show help for a command."""
    if command == (EXIT_CODES,):
        rows = [(str(code), meaning) for code, meaning in exits.MEANINGS.items()]
        for number, meaning in (*rows, ("128+N", exits.BY_SIGNAL)):
            print_out(f"{number:>5}  {meaning}")
        return exits.OK
    at = context.find_root()
    for name in command:
        found = at.command.get_command(at, name) if isinstance(at.command, click.Group) else None
        if found is None:
            raise click.UsageError(f"No such command {' '.join(command)!r}", at)
        at = click.Context(found, parent=at, info_name=name)
    print_out(at.get_help())
    return exits.OK
