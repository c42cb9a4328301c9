"""Reads any call into its effects: a shell command by its text, another tool by its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import cast

from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Effect
from evoclaw.shell.effects import Effects, HostEffect, PathAccess, PathEffect, escape, names
from evoclaw.shell.hosts import host_of

SHELL_TOOLS = frozenset({"bash", "shell"})
_TREES = frozenset({"glob", "grep", "git_status", "git_diff", "git_log", "git_commit"})
_NO_PLACES = names(
    """websearch codesearch question todowrite todoread skill task sessions_list
    sessions_history sessions_send sessions_spawn session_status agents_list"""
)
_PATH_NAMES = re.compile(
    r"(.*_)?(path|paths|file|files|filename|dir|directory|folder|workdir|cwd|root|source|src|dst|dest"
    r"|destination|target|output|input|repo)",
    re.IGNORECASE,
)
_URL_NAMES = re.compile(
    r"(.*_)?(url|urls|uri|href|link|endpoint|host|hostname|domain|server)", re.I
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_PATCHED = re.compile(
    r"(?:\*\*\* (?:Add File|Update File|Delete File|Move to): |(?:\+\+\+|---) (?:[ab]/)?"
    r"|(?:rename|copy) (?:from|to) |diff --git )(.+)"
)
MAX_ARGUMENT_STRINGS = 500
MAX_ARGUMENT_NAME_CHARS = 64
"""Length of an argument's name whose kind is cached."""


def read_call(call: Call, workspace: str, home: str) -> Effects:
    """The effects of a call."""
    name, arguments = call.tool.name, call.arguments
    command = arguments.get("command")
    if name in SHELL_TOOLS and isinstance(command, str):
        workdir = arguments.get("workdir", ".")
        here = workdir == "." or not isinstance(workdir, str)
        cwd = workspace if here else _joined(workspace, workdir)
        return _reader()(command, cwd, home)
    if name in SHELL_TOOLS:
        return Effects(unreadable="it contains no command")
    if name in _NO_PLACES:
        return Effects()
    access = (
        (PathAccess.READ,)
        if call.tool.effect is Effect.READ
        else (PathAccess.READ, PathAccess.WRITE)
    )
    if name == "apply_patch":
        return _patch(arguments.get("patch"), workspace)
    if name == "git_commit":
        return _commit(arguments, workspace)
    if name in ("write", "edit"):
        access = (PathAccess.WRITE,)
    return _guessed(name, arguments, access, workspace)


@cache
def _reader() -> Callable[[str, str, str], Effects]:
    # Imported lazily: most of this package is for commands, which a device may never receive.
    from evoclaw.shell.commands import read_cached_command

    return read_cached_command


def _joined(workspace: str, path: str) -> str:
    return path if path.startswith("/") else f"{workspace.rstrip('/')}/{path}"


def _patch(patch: JSON, workspace: str) -> Effects:
    if not isinstance(patch, str):
        return Effects(unreadable="it contains no patch")
    places: list[PathEffect] = []
    for line in patch.splitlines():
        found = _PATCHED.match(line)
        if found is None:
            continue
        pieces = found[1].split(" b/") if line.startswith("diff") else [found[1].split("\t")[0]]
        for piece in pieces:
            path = piece.removeprefix("a/").strip().strip('"')
            if path != "/dev/null":
                places.append(
                    PathEffect(_joined(escape(workspace), escape(path)), PathAccess.WRITE)
                )
    return Effects(places=tuple(places))


def _commit(arguments: dict[str, JSON], workspace: str) -> Effects:
    """A commit reads the working tree; it writes to the repository, and no file of the tree."""
    read = _guessed("git_commit", arguments, (PathAccess.READ,), workspace)
    workdir = arguments.get("workdir", ".")
    root = _joined(workspace, workdir) if isinstance(workdir, str) else workspace
    index = PathEffect(escape(f"{root.rstrip('/')}/.git/index"), PathAccess.WRITE)
    return Effects(places=(*read.places, index), hosts=read.hosts)


def _guessed(
    name: str, arguments: dict[str, JSON], access: tuple[PathAccess, ...], workspace: str
) -> Effects:
    places: list[PathEffect] = []
    hosts: list[HostEffect] = []
    tree = name in _TREES
    if tree and not arguments.keys() & {"path", "workdir"}:
        places += [PathEffect(escape(workspace), kind, tree=True) for kind in access]
    for key, text in _strings(arguments, ""):
        named = _named(key) if len(key) <= MAX_ARGUMENT_NAME_CHARS else _names(key)
        if named == "url" or _URL.fullmatch(text):
            host = host_of(text)
            if host is not None:
                hosts.append(HostEffect(host))
                continue
            places += [PathEffect("", kind) for kind in access]
        elif named == "path" or text.startswith(("/", "../", "~/")):
            # Tools use a path literally: nothing in it is expanded.
            pattern = escape(_joined(workspace, text))
            places += [PathEffect(pattern, kind, tree=tree) for kind in access]
    return Effects(places=tuple(places), hosts=tuple(hosts))


def _names(key: str) -> str:
    """The kind of an argument by its name: `url`, `path`, or neither."""
    if _URL_NAMES.fullmatch(key):
        return "url"
    return "path" if _PATH_NAMES.fullmatch(key) else ""


_named = lru_cache(512)(_names)


def _strings(value: JSON, key: str, left: int = MAX_ARGUMENT_STRINGS) -> Iterator[tuple[str, str]]:
    """Every string in the arguments, with the name of its argument."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in islice(cast("dict[str, JSON]", value).items(), left):
            yield from _strings(inner, name, left)
    elif isinstance(value, list):
        for inner in cast("list[JSON]", value)[:left]:
            yield from _strings(inner, key, left)
