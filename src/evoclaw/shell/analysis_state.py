"""`AnalysisState`: the effects found so far in a command, and its variables and working folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from evoclaw.shell.effects import (
    Effects,
    HostEffect,
    PathAccess,
    PathEffect,
    ProgramEffect,
    SettingEffect,
    Unreadable,
    Word,
    escape,
)
from evoclaw.shell.hosts import canonical

MAX_POSSIBLE_FOLDERS = 4
"""Possible working folders that are tracked; beyond that the folder is unknown."""
MAX_EFFECTS = 2_000
"""Programs, paths and hosts of one command."""

_DANGEROUS = re.compile(
    r"""LD_.*|DYLD_.*|PATH|BASH_.*|BASHOPTS|SHELLOPTS|ENV|GIT_.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*
    |NPM_.*|PIP_.*|JAVA_.*|_?JAVA_OPTIONS|CLASSPATH|.*PAGER.*|.*EDITOR|VISUAL|BROWSER|LESS.*
    |PS[0-4]|PROMPT_COMMAND|IFS|CDPATH|HOME|SHELL|XDG_.*|MAKEFLAGS|MFLAGS|GNUMAKEFLAGS|.*_PROXY
    |.*_ASKPASS|RSYNC_.*|TAR_.*|GREP_OPTIONS|AWK.*|GAWK.*|GCONV_PATH|LOCPATH|NLSPATH|TEXTDOMAIN.*
    |POSIXLY_CORRECT|GLOBIGNORE|EXECIGNORE|HOSTALIASES|RES_OPTIONS|LOCALDOMAIN|OPENSSL_.*|SSL_.*
    |CURL_.*|WGETRC|SYSTEM_WGETRC|DOCKER_.*|KUBECONFIG|AWS_.*|CARGO_.*|RUSTC.*|GO(FLAGS|PROXY|ENV)
    |ZDOTDIR|FCEDIT|INPUTRC|TERMINFO.*|TERMCAP|EVOCLAW_.*|.*[^A-Za-z0-9_].*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_HARMLESS = re.compile(
    r"NODE_ENV|PYTHON(UNBUFFERED|DONTWRITEBYTECODE|IOENCODING|UTF8|HASHSEED)|GIT_TERMINAL_PROMPT"
    r"|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)|PIP_NO_\w+|CARGO_TERM_COLOR|NPM_CONFIG_LOGLEVEL"
)
_SPECIAL = re.compile(
    r"REPLY|MAPFILE|OPT.*|PIPESTATUS|COPROC.*|(OLD)?PWD|COLUMNS|LINES|E?UID|PPID|RANDOM|SRANDOM|SECONDS|LINENO|GROUPS|DIRSTACK|FUNCNAME|HIST.*|_"
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+-]+")
_NUMERIC = re.compile(r"[0-9]{1,18}")
_NO_CONTENT = ("chmod", "chown", "mkdir", "rm", "rmdir", "touch")
_IGNORED = re.compile(r"/dev/(null|stdin|stdout|stderr|fd/[0-9]+|zero|u?random)")
_SOCKET = re.compile(r"/+dev/+(?:tcp|udp)/+([^/]+)/.*", re.DOTALL)


@lru_cache(512)
def is_dangerous(name: str) -> bool:
    """Whether programs run, load or trust the value of a variable."""
    return _DANGEROUS.fullmatch(name) is not None and _HARMLESS.fullmatch(name) is None


class Reassigned(Exception):
    """A variable turned out not to be constant: the command must be read again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class AnalysisState:
    """The analysis of one command and everything nested in it."""

    __slots__ = (
        "_assigned", "_counted", "_inexact", "_lost", "_names_of_files", "_places", "_used",
        "code", "constants", "cwds", "data", "depth", "home", "hosts", "posix", "programs",
        "reparse", "repeated", "scripts", "settings", "straight", "unknown", "variables",
    )  # fmt: skip
    reparse: Callable[[str, bool], None]
    """Analyse shell code that was found in a word; True for a shell other than bash."""

    def __init__(
        self, cwds: tuple[str, ...], home: str, variables: frozenset[str] = frozenset()
    ) -> None:
        """Start without effects.

        Args:
            cwds: Patterns of the possible working folders.
            home: The pattern of the user's home folder; empty if unknown.
            variables: Variables that are known to change.
        """
        self.cwds, self.home, self.variables = cwds, home, variables
        self.data = b""
        """The bytes that are being read."""
        self.unknown = ""
        """Why the effects are incomplete."""
        self.scripts: list[str] = []
        """Programs in the owner's files, which this command itself may have written."""
        self.posix = False
        self.depth = self.repeated = 0
        """Nesting depth of shells, and of loops and functions, at the current position."""
        self.straight = True
        """The current statement runs exactly once, before the statements after it."""
        self.programs: list[ProgramEffect] = []
        self.hosts: list[HostEffect] = []
        self.settings: list[SettingEffect] = []
        self.code: list[str] = []
        self.constants: dict[str, str] = {}
        self._places: list[tuple[PathEffect, bool]] = []
        """Each path, and whether it depends on the working folder."""
        self._assigned: set[str] = set()
        self._used: set[str] = set()
        self._inexact: set[str] = set()
        """Variables that may hold more than a number."""
        self._counted: set[str] = set()
        """Variables that the shell evaluates as arithmetic, which can run commands."""
        self._names_of_files: set[str] = set()
        self._lost = False
        """Note that the working folder is unknown."""

    def place(
        self, word: Word, access: PathAccess, by: str = "", *, tree: bool = False, sure: bool = True
    ) -> None:
        """Note a path that is read or written."""
        pattern, text, places = word.pattern, word.text, self._places
        if text is not None and text.startswith("/dev/") and _IGNORED.fullmatch(text):
            return
        if len(places) > MAX_EFFECTS:
            raise Unreadable("it touches more files than can be checked")
        if "\0" in pattern:
            places.append((PathEffect("", access, by, tree, sure), False))
        elif not pattern.startswith("/"):
            for cwd in self.cwds:
                places.append((PathEffect(f"{cwd}/{pattern}", access, by, tree, sure), True))
        else:
            places.append((PathEffect(pattern, access, by, tree, sure), False))

    def both(self, word: Word, by: str, *, tree: bool = False, sure: bool = True) -> None:
        """Note a path that may be read and written."""
        self.place(word, PathAccess.READ, by, tree=tree, sure=sure)
        self.place(word, PathAccess.WRITE, by, tree=tree, sure=sure)

    def redirect(self, word: Word, access: PathAccess, by: str) -> None:
        """Note a path that the shell itself opens; some names open a connection."""
        text = word.text
        if text is None:
            if word.pattern.startswith("\0") or "dev" in word.pattern:
                self.host("", by)
        elif found := _SOCKET.fullmatch(text):
            self.host(canonical(found[1]), by)
            return
        self.place(word, access, by)

    def host(self, name: str, by: str, *, sure: bool = True) -> None:
        """Note a host that is contacted; empty if it can be any."""
        self.hosts.append(HostEffect(name, by, sure))

    def go(self, word: Word) -> None:
        """Note that the working folder may change."""
        if self.repeated or word.text is None or len(self.cwds) >= MAX_POSSIBLE_FOLDERS:
            self._lost = True
        elif word.pattern.startswith("/"):
            self.cwds = (*self.cwds, word.pattern)
        else:
            self.cwds = (*self.cwds, *(f"{cwd}/{word.pattern}" for cwd in self.cwds))

    def assign(self, name: str, word: Word | None, *, constant: bool = False) -> None:
        """Note that a variable is set; None if its value is unknown."""
        dangerous = is_dangerous(name)
        self.settings.append(SettingEffect(name, dangerous))
        text = word.text if word is not None else None
        if name in self._used:
            raise Reassigned(name)
        again = name in self._assigned
        self._assigned.add(name)
        self.constants.pop(name, None)
        if text is None or not _NUMERIC.fullmatch(text):
            self._inexact.add(name)
        if text is None or again or dangerous or not constant or _SPECIAL.fullmatch(name):
            return
        steady = self.straight and not self.repeated and name not in self.variables
        if steady and _PLAIN.fullmatch(text):
            self.constants[name] = text

    @contextmanager
    def bound(self, name: str, values: Sequence[Word]) -> Generator[None]:
        """Let a variable take several values within the block."""
        numbers = all(value.text is not None and value.text.isdecimal() for value in values)
        self.assign(name, Word("0", "0") if numbers and values else None)
        every = _every(values)
        if every is not None and name not in self.variables and not is_dangerous(name):
            self.constants[name] = every
        if any(value.text is None for value in values):
            self._names_of_files.add(name)
        yield
        self.constants.pop(name, None)

    def value(self, name: str, *, quoted: bool = True) -> str | None:
        """The value of a variable, where it is certain."""
        found = self.constants.get(name)
        if not quoted and name in self._names_of_files:
            return None  # the values may contain blanks
        if found is not None:
            self._used.add(name)
        elif name == "HOME" and self.home and not {"HOME"} & (self._assigned | self.variables):
            self._used.add(name)
            return self.home
        return found

    def evaluate(self, name: str) -> None:
        """Note that a variable is evaluated as arithmetic."""
        self._counted.add(name)

    def doubt(self, why: str) -> None:
        """Note why the effects are incomplete; the known ones are still collected."""
        self.unknown = self.unknown or why

    def effects(self) -> Effects:
        """The effects found so far."""
        if odd := self._counted & self._inexact:
            self.doubt(f"it calculates with {min(odd)}, which may hold more than a number")
        places = [
            PathEffect("", path.access, path.by, path.tree, path.sure)
            if relative and self._lost
            else path
            for path, relative in self._places
        ]
        if self.scripts:
            # A script that this command wrote is code that was not analysed.
            tame = {*self.scripts, *_NO_CONTENT}
            if any(path.access is PathAccess.WRITE and path.by not in tame for path in places):
                self.code += self.scripts
        return Effects(
            tuple(self.programs),
            tuple(places),
            tuple(self.hosts),
            tuple(self.settings),
            tuple(self.code),
            self.unknown,
        )


def _every(values: Sequence[Word]) -> str | None:
    """A pattern that matches each of several words."""
    if any(
        "\0" in value.pattern or value.pattern[:1] in "-.~" or not value.pattern for value in values
    ):
        return None
    if len(values) == 1:
        # An unquoted value with a blank would become several words.
        return values[0].pattern if not re.search(r"\s", values[0].pattern) else None
    plain = all(value.text is not None and _PLAIN.fullmatch(value.text) for value in values)
    return "*" if plain and values and not any("/" in value.pattern for value in values) else None


def start_analysis(cwd: str, home: str, variables: frozenset[str] = frozenset()) -> AnalysisState:
    """Start the analysis in a folder."""
    return AnalysisState((escape(cwd.rstrip("/")),), escape(home.rstrip("/")), variables)
