"""Analyses a shell command into its effects, and caches the result."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice

from evoclaw.shell.analysis_state import AnalysisState, Reassigned, start_analysis
from evoclaw.shell.effects import Effects, Unreadable, literal
from evoclaw.shell.syntax_walker import SyntaxWalker

MAX_READ_ATTEMPTS = 16
"""Times a command is read again because a variable turned out not to be constant."""
MAX_CACHED_COMMANDS, MAX_CACHED_COMMAND_CHARS = 256, 1_024
"""Commands that are cached, and the longest of them."""
MAX_SALVAGED_WORDS = 100
"""Words that are checked for paths in a command that could not be read."""
_BREAKS = re.compile(r"[\s;&|<>(){}\"'`=,]+")
_HOME = re.compile(r"\$HOME\b|\$\{HOME\}|(?<![\w/.~])~(?=/|\s|$)")


def read_command(text: str, cwd: str, home: str) -> Effects:
    """The effects of a command that bash runs in a folder."""
    changing: frozenset[str] = frozenset()
    for _ in range(MAX_READ_ATTEMPTS):
        scene = start_analysis(cwd, home, changing)
        try:
            SyntaxWalker(scene).text(text, posix=False)
            return scene.effects()
        except Reassigned as found:
            changing |= {found.name}
        except Unreadable as problem:
            scene.doubt(str(problem))
            salvage(scene, text)
            return scene.effects()
    return Effects(unreadable="its variables change too often")


def salvage(scene: AnalysisState, text: str) -> None:
    """Note every word with a slash as a path that is read and written; the rest is unknown."""
    expanded = _HOME.sub(lambda _: scene.home.replace("\\", "") or "~", text)
    plain = (word.replace("\\", "") for word in _BREAKS.split(expanded))
    paths = (word for word in plain if "/" in word and "\0" not in word)
    for word in islice(paths, MAX_SALVAGED_WORDS):
        scene.both(literal(word), "")


_read_cached = lru_cache(MAX_CACHED_COMMANDS)(read_command)


def read_cached_command(text: str, cwd: str, home: str) -> Effects:
    """The effects of a command that bash runs in a folder; symlinks are not resolved."""
    read = _read_cached if len(text) <= MAX_CACHED_COMMAND_CHARS else read_command
    return read(text, cwd, home)


def clear_command_cache() -> None:
    """Clear the cache; results stay the same."""
    _read_cached.cache_clear()
