"""Groups, commands and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=True, readable=False)
"""A path that shells complete; the command itself reports what is wrong with it."""
POSITIVE = click.IntRange(min=1)


class _ShortHelp(click.Command):
    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "Show this help"
        return option


class CliCommand(_ShortHelp):
    """A command."""


class CommandGroup(_ShortHelp, click.Group):
    """A group that lists its commands in the order of the code.

    With `default`, that command runs when no subcommand is given: `evoclaw runs --json` is
    `evoclaw runs list --json`.
    """

    command_class = CliCommand

    def __init__(self, *arguments: Any, default: str = "", **settings: Any) -> None:
        settings.setdefault("invoke_without_command", bool(default))
        super().__init__(*arguments, **settings)
        self.default = default
        if default:
            self.callback = self._run_default

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; the options of the default command are those of the group as well."""
        super().add_command(cmd, name)
        if self.default and self.default == (name or cmd.name):
            self.params = [*cmd.params]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which the commands were added."""
        return [name for name, command in self.commands.items() if not command.hidden]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, whole: click would cut it."""
        rows = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _run_default(self, **given: Any) -> Any:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            return context.invoke(self.commands[self.default], **given)
        typed = {
            name: value
            for name, value in given.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        context.default_map = {context.invoked_subcommand: typed}
        return None


class ExclusiveCommand(CliCommand):
    """A command with options that exclude each other."""

    def __init__(
        self,
        *arguments: Any,
        exclusive: Sequence[Sequence[str]] = (),
        one_required: bool = False,
        **settings: Any,
    ) -> None:
        """Create the command.

        Args:
            *arguments: As for any command.
            exclusive: Names of parameters, of which at most one may be given.
            one_required: Whether one of each must be given.
            **settings: As for any command.
        """
        super().__init__(*arguments, **settings)
        self.one_required = one_required
        self.exclusive = [
            [param for param in self.params if param.name in names] for names in exclusive
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then refuse options that exclude each other."""
        rest = super().parse_args(ctx, args)
        for params in () if ctx.resilient_parsing else self.exclusive:
            given = [
                param.opts[0]
                for param in params
                if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            ]
            if len(given) > 1:
                raise click.UsageError(f"{' and '.join(given)} cannot be used together", ctx)
            if self.one_required and not given:
                names = ", ".join(param.opts[0] for param in params)
                raise click.UsageError(f"One of {names} is required", ctx)
        return rest


def json_option(text: str = "Print JSON") -> Callable[[F], F]:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)
