"""The effects of a program with its arguments: itself, the programs it runs, its paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.builtins import BUILTINS
from evoclaw.shell.effects import ProgramEffect, Unreadable, Word, names
from evoclaw.shell.interpreters import SHELLS, is_code, is_interpreter, shell_code
from evoclaw.shell.known_programs import NO_PATHS, SPECS, guess_paths, touch_paths
from evoclaw.shell.network import meet_hosts
from evoclaw.shell.wrappers import WRAPPERS, find_runs, unwrap, watched_code

MAX_WRAPPERS = 12
_RESERVED = names(
    """{ } ! [[ ]] ( ) (( )) if then elif else fi for while until do done case esac function
    select in coproc"""
)
_SYSTEM = re.compile(r"/(usr/(local/)?)?s?bin/[^/]+|/opt/[\w./-]+/bin/[^/]+")
_MESSAGES = frozenset({"git", "gh", "glab", "hg", "svn"})
_PLAIN = NO_PATHS | SPECS.keys() | {"ln", "dd", "man", "which"}


def run_program(words: Sequence[Word], scene: AnalysisState, stdin: str | None) -> str:
    """Note the effects of a program; return its name, or that of the program it wraps."""
    name = ""
    found = list(words)
    for _ in range(MAX_WRAPPERS):
        if not found:
            return name
        first, rest = found[0], found[1:]
        if first.text is None or first.many:
            scene.programs.append(ProgramEffect("", tuple(rest)))
            scene.doubt(f"which program {first.shown!r} is, is known only at run time")
            guess_paths("", rest, scene)
            return name
        name = _add(first.text, rest, scene)
        if name not in WRAPPERS:
            _do(name, rest, scene, stdin)
            return name
        if is_code(name, rest):
            scene.code.append(name)
        found = unwrap(name, rest, scene)
    raise Unreadable("too many programs run one another")


def _add(text: str, words: Sequence[Word], scene: AnalysisState) -> str:
    name = text.rstrip("/").rpartition("/")[2]
    if text in _RESERVED or not name:
        raise Unreadable(f"{text!r} is not understood here")
    path = text if "/" in text else ""
    if path and not _SYSTEM.fullmatch(path):
        scene.scripts.append(name)
    scene.programs.append(ProgramEffect(name, tuple(words), path, plain=name in _PLAIN))
    return name


def _do(name: str, words: list[Word], scene: AnalysisState, stdin: str | None) -> None:
    builtin = BUILTINS.get(name)
    if builtin is not None:
        builtin(words, scene)
    if name in SHELLS:
        _shell(name, words, scene, stdin)
        return
    if name == "find":
        for run in find_runs(words, scene):
            run_program(run, scene, None)
        return
    if name == "cargo" and any(word.text == "watch" for word in words):
        _cargo_watch(words, scene)
    if name in _MESSAGES:
        words = _without_messages(words)
    if is_code(name, words) or (name == "ssh" and len(words) > 1):
        scene.code.append(name)
    elif is_interpreter(name):
        scene.scripts.append(name)
    meet_hosts(name, words, scene)
    touch_paths(name, words, scene)


def _cargo_watch(words: list[Word], scene: AnalysisState) -> None:
    """Note what `cargo watch` runs: by a shell, or after `--`."""
    for code in watched_code(words):
        scene.reparse(code, True)
    texts = [word.text for word in words]
    if "--" in texts and texts.index("--") + 1 < len(words):
        run_program(words[texts.index("--") + 1 :], scene, None)


def _without_messages(words: list[Word]) -> list[Word]:
    """Drop commit messages and other text: they are neither options nor paths."""
    kept: list[Word] = []
    skip = False
    for word in words:
        if not skip or word.many:
            kept.append(word)
        skip = not skip and (word.text or "") in ("-m", "-am", "--message", "--title", "--body")
    return kept


def _shell(name: str, words: list[Word], scene: AnalysisState, stdin: str | None) -> None:
    found = shell_code(name, words, stdin, scene)
    if found is None:
        return
    code, why = found
    if why:
        scene.doubt(why)
    elif code:
        # Variables that are not exported are unknown to another shell.
        constants, scene.constants = scene.constants, {}
        scene.reparse(code, name not in ("bash", "rbash"))
        scene.constants = constants
    else:
        scene.code.append(name)
