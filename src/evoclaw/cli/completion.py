"""`evoclaw completion bash|zsh|fish`: print the completion script of a shell."""

from __future__ import annotations

import sys

import click

from evoclaw.cli import exits
from evoclaw.cli.main import COMPLETE_VARIABLE
from evoclaw.cli.options import CliCommand

SHELLS = ("bash", "zsh", "fish")
_INSTALL = {
    "bash": "# Save as ~/.local/share/bash-completion/completions/evoclaw",
    "zsh": "# Save as _evoclaw in a folder of $fpath, or source it in ~/.zshrc after compinit",
    "fish": "# Save as ~/.config/fish/completions/evoclaw.fish",
}


@click.command(cls=CliCommand)
@click.argument("shell", type=click.Choice(SHELLS), help="Your shell")
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script."""
    sys.stdout.write(script(shell, context.find_root().command))
    return exits.OK


def script(shell: str, top: click.Command) -> str:
    """The completion script; on Tab, the shell calls `evoclaw` for the completions."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"No completion for {shell!r}")
    head, _, rest = kind(top, {}, "evoclaw", COMPLETE_VARIABLE).source().lstrip().partition("\n")
    if head.startswith("#compdef"):
        return f"{head}\n{_INSTALL[shell]}\n{rest}\n"
    return f"{_INSTALL[shell]}\n{head}\n{rest}\n"
