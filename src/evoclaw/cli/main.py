"""The `evoclaw` command line. The module of a command is imported when that command is typed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CommandGroup
from evoclaw.cli.output import print_err
from evoclaw.core.version import VERSION

if TYPE_CHECKING:
    from evoclaw.core.errors import EvoClawError

_WITHOUT_DATA = frozenset({"help", "completion", "systemd"})
"""Commands for which no data folder is created."""
COMPLETE_VARIABLE = "_EVOCLAW_COMPLETE"
"""The variable with which a completion script (`cli/completion.py`) asks for completions."""
FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_ERRORS = FULL_DISK_ERRORS | {errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of a disk or its permissions, which are reported as one line."""

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Use": {
        "run": "Run a task on this machine, on an edge or over SSH",
        "chat": "Chat with an agent of the running service",
        "acp": "Serve sessions of this machine to an editor over ACP",
        "sessions": "List, show, rename, branch and delete sessions",
        "runs": "List, show, watch, steer and cancel runs of the service",
        "workflows": "List, start, answer and cancel workflows",
        "agents": "List the agents, and show one",
        "fork": "Re-run a recorded run from a given turn",
        "undo": "Undo the file changes of `evoclaw run`",
    },
    "Machines": {
        "up": "Start a broker, an orchestrator and an edge on this machine",
        "edge": "Run an edge agent on this machine",
        "ping": "Check whether an edge answers",
        "edges": "List, invite, approve and revoke edges",
        "tools": "List the tools of this machine or of an edge",
        "mcp": "Serve tools over MCP, and approve tools of MCP servers",
    },
    "Safety": {
        "approvals": "List and answer calls that wait for an approval",
        "stop": "Stop everything, an agent, a tool or the network at once",
        "policy": "Check rules, explain verdicts and compare rule files",
        "budget": "Show limits, spending and what is left of each budget",
        "audit": "Search, verify and export the audit log",
        "receipts": "List, export and verify receipts signed by edges",
        "token": "Manage API tokens",
    },
    "Improve": {
        "eval": "Run the cases of an agent in sandboxes, and print how many pass",
        "cases": "List, show, check and add cases for evaluations",
        "genome": "Show, change, roll back and verify genomes of agents and edges",
        "evolve": "Improve an agent's genome: run a campaign, list and approve candidates",
    },
    "Look into": {
        "status": "Show the status of the service, its edges, runs and budgets",
        "metrics": "Show metrics of runs, calls, tokens and cost",
        "logs": "Show the records of a run, or the audit log of the service",
        "page": "Print a link that opens the dashboard and logs you in",
        "replay": "Replay a recorded run offline",
        "diff": "Compare two recorded runs turn by turn",
        "doctor": "Check this machine and say how to fix what does not work",
    },
    "Set up": {
        "init": "Write a short settings file",
        "config": "Show the settings, and change one",
        "models": "List, pull, push, remove and verify models that run on this machine",
        "skills": "List, show, check, create and add skills",
        "channels": "List and test channels, and manage who may use them",
        "notify": "List notifiers, and send a test message",
        "keys": "Show the key that encrypts stored runs, and replace a lost one",
        "export": "Export the whole store to one file",
        "import": "Import a file that `evoclaw export` wrote",
        "completion": "Print a completion script for your shell",
        "systemd": "Print a systemd unit file for the orchestrator or an edge",
        "help": "Show help for a command",
    },
}
"""Every command once, by what people want to do, with its help text."""
_MODULES = {
    "import": "evoclaw.cli.export",
    "agents": "evoclaw.cli.agent_list",
    "eval": "evoclaw.cli.evaluation",
    "genome": "evoclaw.cli.genome_rollouts",
}
"""The module of a command, if it is not named after the command."""
_ATTRIBUTES = {"import": "import_command", "help": "help_command", "eval": "eval_command"}


class LazyGroup(CommandGroup):
    """The commands; the module of a command is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, by group."""
        return [name for commands in GROUPS.values() for name in commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one of a similar name."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            similar = get_close_matches(args[0], known, 1)
            raise click.exceptions.NoSuchCommand(args[0], possibilities=similar, ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        text = next((group[cmd_name] for group in GROUPS.values() if cmd_name in group), None)
        if text is None:
            return None
        module = import_module(_MODULES.get(cmd_name, f"evoclaw.cli.{cmd_name}"))
        command: click.Command = getattr(module, _ATTRIBUTES.get(cmd_name, cmd_name))
        command.help = text
        command.epilog = _examples(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by group."""
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names without importing the commands."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for commands in GROUPS.values()
            for name, text in commands.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def _examples(name: str) -> str:
    from evoclaw.cli.examples import EXAMPLES

    found = EXAMPLES.get(name, ())
    lines = "\n".join(f"  {example}" for example in found)
    return f"\b\nExample{'s' if len(found) > 1 else ''}:\n{lines}" if found else ""


@click.group(
    name="evoclaw",
    cls=LazyGroup,
    help="Run LLM agents whose tool calls are governed and run on the machines you own",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(VERSION, message="evoclaw %(version)s", help="Print the version")
def command_line() -> None:
    """Run one of the commands."""


def main(arguments: Sequence[str]) -> int:
    """Read the command line, run one command, return its exit code."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(command_line, {}, "evoclaw", COMPLETE_VARIABLE, instruction)
    try:
        return _invoke(arguments)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as problem:
        _report(problem)
        return exits.MISUSED
    except BrokenPipeError:
        return exits.FAILED
    except KeyboardInterrupt:
        return exits.CANCELLED
    except OSError as problem:
        if problem.errno not in DISK_ERRORS or problem.filename is None:
            raise
        print_err(f"evoclaw: {_disk_problem(problem)}")
        return exits.MISUSED
    except _reported_errors() as error:
        print_err(f"evoclaw: {error}")
        return exits.MISUSED
    finally:
        _flush_stdout()


def _invoke(arguments: Sequence[str]) -> int:
    if not arguments and (code := _first_run()) is not None:
        return code
    with command_line.make_context("evoclaw", list(arguments)) as context:
        if _uses_data(arguments):
            from evoclaw.cli.data_folder import prepare_data_folder
            from evoclaw.cli.environment_file import load_environment_file

            prepare_data_folder(os.environ)
            load_environment_file(os.environ)
        return command_line.invoke(context) or exits.OK


def _first_run() -> int | None:
    """Guide a person who starts EvoClaw for the first time; None if this is not the first time."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    from evoclaw.cli.first_run import first_run, needs_first_run

    return first_run() if needs_first_run() else None


def _uses_data(arguments: Sequence[str]) -> bool:
    """Whether a command may use the data folder."""
    command = next(iter(arguments), "")
    is_known = any(command in commands for commands in GROUPS.values())
    return is_known and command not in _WITHOUT_DATA and "--help" not in arguments


def _reported_errors() -> type[EvoClawError]:
    """The errors that are reported as one line; imported on failure, to keep the start fast."""
    from evoclaw.core.errors import EvoClawError

    return EvoClawError


def _disk_problem(problem: OSError) -> str:
    """A file that cannot be written, in one line."""
    advice = (
        "free some space"
        if problem.errno in FULL_DISK_ERRORS
        else "make it writable for this user, or set EVOCLAW_HOME to another folder"
    )
    return f"cannot use {problem.filename}: {problem.strerror}; {advice}"


def _report(problem: click.UsageError) -> None:
    """Print what is wrong with the command line, and which help to read."""
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        print_err(problem.format_message())
        return
    where = "evoclaw" if problem.ctx is None else problem.ctx.command_path
    text = problem.format_message().rstrip(".")
    print_err(f"evoclaw: {text}{' See' if text.endswith('?') else '; see'} `{where} --help`")


def _flush_stdout() -> None:
    """Flush now: at exit, Python would report a broken pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
