"""The command tree as plain values, for whoever writes it down in another language."""

# argparse has no public way to look at what was added to it.
# pyright: strict, reportPrivateUsage=false

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import cast

from msgspec import Struct

_FILES = frozenset({"FILE", "FOLDER", "PATH", "file", "files", "folder", "path", "recording"})
"""How arguments are named that are files or folders."""


class Argument(Struct, frozen=True):
    """An option, or what stands without one."""

    names: tuple[str, ...]
    """Empty for what stands without an option."""
    help: str = ""
    takes: bool = False
    """Whether a value follows."""
    choices: tuple[str, ...] = ()
    file: bool = False
    """Whether the value is a file or a folder."""


class Command(Struct, frozen=True):
    """One command, with what can follow it."""

    path: str
    """All its words, such as `evoclaw agents list`."""
    commands: dict[str, str]
    """The commands below it, with what they are for."""
    options: tuple[Argument, ...]
    values: tuple[Argument, ...]


def tree(top: argparse.ArgumentParser, path: str = "evoclaw") -> Iterator[Command]:
    """A command and all that are below it."""
    below: dict[str, str] = {}
    parsers: dict[str, argparse.ArgumentParser] = {}
    options: list[Argument] = []
    values: list[Argument] = []
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            several = cast("argparse._SubParsersAction[argparse.ArgumentParser]", action)
            below |= {one.dest: _plain(one.help) for one in several._choices_actions}
            parsers |= several.choices
        else:
            (options if action.option_strings else values).append(_argument(action))
    yield Command(path, below, tuple(options), tuple(values))
    for name, parser in parsers.items():
        yield from tree(parser, f"{path} {name}")


def _argument(action: argparse.Action) -> Argument:
    choices = tuple(str(one) for one in action.choices or ())
    named = {action.dest, action.metavar if isinstance(action.metavar, str) else ""}
    return Argument(
        tuple(action.option_strings),
        _plain(action.help),
        takes=action.nargs != 0,
        choices=choices,
        file=not choices and bool(named & _FILES),
    )


def _plain(text: str | None) -> str:
    return "" if text is None else text.replace("%%", "%")
