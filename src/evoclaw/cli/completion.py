"""`evoclaw completion bash|zsh|fish`: what a shell needs to complete our commands."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from evoclaw.cli import exits
from evoclaw.cli.tree import Argument, Command, tree

_BASH = """\
# Completion of evoclaw for bash: put it into ~/.local/share/bash-completion/completions/evoclaw
_evoclaw() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=evoclaw words='' index
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$at ${COMP_WORDS[index]}" in
@PATHS@) at="$at ${COMP_WORDS[index]}" ;;
        esac
    done
    COMPREPLY=()
    case "$at:$prev" in
@VALUES@
    esac
    if [[ $cur == -* ]]; then
        case "$at" in
@OPTIONS@
        esac
    else
        case "$at" in
@WORDS@
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _evoclaw evoclaw
"""
_ZSH = """\
#compdef evoclaw
# Completion of evoclaw for zsh: load it in ~/.zshrc, after compinit.
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
# Completion of evoclaw for fish: put it into ~/.config/fish/completions/evoclaw.fish
function __evoclaw_at
    set -l at evoclaw
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case @PATHS@
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
"""


def completion(options: Namespace, _wiring: object = None) -> int:
    """Print the script."""
    from evoclaw.cli.main import parser

    sys.stdout.write(script(options.shell, parser()))
    return exits.OK


def script(shell: str, top: ArgumentParser) -> str:
    """What a shell has to read."""
    commands = list(tree(top))
    match shell:
        case "fish":
            return _fish(commands)
        case "zsh":
            return _ZSH + _bash(commands)
        case _:
            return _bash(commands)


def _bash(commands: Sequence[Command]) -> str:
    cases = {
        "PATHS": "|\\\n".join(f"            {_quoted(c.path)}" for c in commands[1:]),
        "VALUES": "\n".join(f"        {line}" for c in commands for line in _bash_values(c)),
        "OPTIONS": _bash_words((c.path, _names(c.options)) for c in commands),
        "WORDS": _bash_words((c.path, [*c.commands, *_choices(c.values)]) for c in commands),
    }
    text = _BASH
    for name, lines in cases.items():
        text = text.replace(f"@{name}@", lines)
    return text


def _bash_values(command: Command) -> Iterator[str]:
    for option in command.options:
        if not option.takes:
            continue
        if option.choices:
            words = _quoted(" ".join(option.choices))
            then = f'COMPREPLY=($(compgen -W {words} -- "$cur")); return'
        elif option.file:
            then = "return"  # the shell's own completion of files follows
        else:
            then = "compopt +o default 2>/dev/null; return"
        yield f"{'|'.join(_quoted(f'{command.path}:{name}') for name in option.names)}) {then} ;;"


def _bash_words(found: Iterator[tuple[str, Sequence[str]]]) -> str:
    return "\n".join(
        f"            {_quoted(path)}) words={_quoted(' '.join(words))} ;;"
        for path, words in found
        if words
    )


def _fish(commands: Sequence[Command]) -> str:
    lines = [_FISH.replace("@PATHS@", " ".join(_quoted(c.path) for c in commands[1:]))]
    for command in commands:
        start = f"complete -c evoclaw -n '__evoclaw_at \"{command.path}\"'"
        if command.commands or not any(value.file for value in command.values):
            lines.append(f"{start} -f\n")
        for name, help_ in command.commands.items():
            lines.append(f"{start} -f -a {name}{_said(help_)}\n")
        if words := _choices(command.values):
            lines.append(f"{start} -f -a {_quoted(' '.join(words))}\n")
        lines += [f"{start}{_fish_option(option)}\n" for option in command.options]
    return "".join(lines)


def _fish_option(option: Argument) -> str:
    names = "".join(
        f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names
    )
    value = ""
    if option.takes:
        value = " -r" if option.file else " -x"
        value += f" -a {_quoted(' '.join(option.choices))}" if option.choices else ""
    return names + value + _said(option.help)


def _said(text: str) -> str:
    return f" -d {_quoted(text)}" if text else ""


def _names(options: Sequence[Argument]) -> list[str]:
    return [name for option in options for name in option.names]


def _choices(values: Sequence[Argument]) -> list[str]:
    return [choice for value in values for choice in value.choices]


def _quoted(text: str) -> str:
    """Quoted for all three shells, which escape a quote each in another way."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"
