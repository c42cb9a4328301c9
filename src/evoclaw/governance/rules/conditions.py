"""The conditions of a rule: what they match for certain, and what they may match."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import translate
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.governance.rules.patterns import covers, is_plain, patterns_overlap
from evoclaw.shell.effects import HostEffect, ProgramEffect, Word, escape
from evoclaw.shell.hosts import canonical

_CLUSTER = re.compile(r"-[A-Za-z0-9]+")


class RuleMatch(IntEnum):
    """Whether a rule matches: no, perhaps, or certainly."""

    NO = 0
    MAYBE = 1
    YES = 2


class NamePatterns:
    """Names and globs that match names."""

    def __init__(self, globs: Sequence[str], *, fold: bool) -> None:
        self._fold = fold
        folded = [glob.casefold() if fold else glob for glob in globs]
        self._plain = frozenset(name for name in folded if not is_glob(name))
        rest = [translate(glob) for glob in folded if glob not in self._plain]
        self._globs = re.compile("|".join(rest)) if rest else None

    def matches(self, name: str) -> bool:
        """Whether one of the patterns matches a name."""
        if self._fold:
            name = name.casefold()
        return name in self._plain or (
            self._globs is not None and self._globs.match(name) is not None
        )


def is_glob(name: str) -> bool:
    """Whether a name has wildcards."""
    return any(sign in name for sign in "*?[")


class ArgumentPattern:
    """An entry of a rule's `arguments`: some word of the command must match it."""

    def __init__(self, text: str) -> None:
        self._patterns = tuple(text.split("|"))
        self._plain = frozenset(pattern for pattern in self._patterns if is_plain(pattern))
        globs = tuple(pattern for pattern in self._patterns if pattern not in self._plain)
        self._globs = re.compile("|".join(map(translate, globs))) if globs else None
        self._flags = tuple(
            pattern[1] for pattern in self._patterns if re.fullmatch(r"-[A-Za-z0-9]", pattern)
        )

    def match(self, word: Word) -> RuleMatch:
        """Whether a word of the command matches."""
        text = word.text
        if text is None:
            if word.loose:
                return RuleMatch.MAYBE
            possible = any(patterns_overlap(word.pattern, pattern) for pattern in self._widened())
            return RuleMatch.MAYBE if possible else RuleMatch.NO
        if text in self._plain:
            return RuleMatch.YES
        if self._globs is not None and self._globs.match(text):
            return RuleMatch.YES
        if self._flags and _CLUSTER.fullmatch(text) and any(flag in text for flag in self._flags):
            return RuleMatch.YES
        return RuleMatch.NO

    def _widened(self) -> Iterable[str]:
        yield from self._patterns
        for flag in self._flags:
            yield f"-*{flag}*"


def match_words(arguments: Sequence[ArgumentPattern], words: Sequence[Word]) -> RuleMatch:
    """Whether every argument of a rule matches some word."""
    if not arguments:
        return RuleMatch.YES
    maybe: list[set[int]] = []
    for argument in arguments:
        hits = [argument.match(word) for word in words]
        if RuleMatch.YES in hits:
            continue
        possible = {index for index, hit in enumerate(hits) if hit is RuleMatch.MAYBE}
        if not possible:
            return RuleMatch.NO
        maybe.append(possible)
    if not maybe:
        return RuleMatch.YES
    # An unknown word can match only one argument, unless it expands to several words.
    if any(words[index].many for possible in maybe for index in possible):
        return RuleMatch.MAYBE
    return RuleMatch.MAYBE if len(set[int]().union(*maybe)) >= len(maybe) else RuleMatch.NO


def match_program(
    names: NamePatterns, arguments: Sequence[ArgumentPattern], program: ProgramEffect
) -> RuleMatch:
    """Whether a rule matches a program and its words."""
    if not program.name:
        return RuleMatch.MAYBE
    if names.matches(program.name):
        return match_words(arguments, program.words)
    if program.plain:
        return RuleMatch.NO
    # An unknown program may run a program that its arguments name.
    own = _subcommand_index(program)
    for index, word in enumerate(program.words):
        if index == own:
            continue
        if word.text is not None and names.matches(word.text.rpartition("/")[2]):
            return min(RuleMatch.MAYBE, match_words(arguments, program.words[index + 1 :]))
    return RuleMatch.NO


def _subcommand_index(program: ProgramEffect) -> int:
    """The index of git's subcommand: `git init` does not run a program `init`."""
    if program.name != "git":
        return -1
    found = (index for index, word in enumerate(program.words) if (word.text or "-")[:1] != "-")
    return next(found, -1)


_Tree: TypeAlias = "dict[str, _Tree]"
"""A trie of path names; an empty name marks the end of a path."""


def _insert(tree: _Tree, names: Iterable[str]) -> None:
    for name in names:
        tree = tree.setdefault(name, {})
    tree[""] = {}


def _tree_matches(tree: _Tree, names: Iterable[str], *, above: bool) -> bool:
    """Whether a path is in a trie, or below one that is; with `above`, also above one."""
    here = tree
    for name in names:
        if "" in here:
            return True
        below = here.get(name)
        if below is None:
            return False
        here = below
    return "" in here or (above and bool(here))


class PathPatterns:
    """Paths and globs; each also covers what is below it."""

    def __init__(self, paths: Sequence[str], workspace: str, home: str) -> None:
        self._exact = tuple(_absolute(path, workspace, home) for path in paths)
        self._folded = tuple(tuple(part.casefold() for part in path) for path in self._exact)
        # Most paths of rules and of calls have no wildcards: these are matched in a trie.
        plain = frozenset(path for path in self._folded if all(map(is_plain, path)))
        self._tree: _Tree = {}
        for path in plain:
            _insert(self._tree, path)
        globs = [path for path in self._folded if path not in plain]
        self._anywhere = tuple(path for path in globs if not is_plain(path[0]))
        self._below: dict[str, tuple[tuple[str, ...], ...]] = {
            first: (*(path for path in globs if path[0] == first), *self._anywhere)
            for first in {path[0] for path in globs if is_plain(path[0])}
        }

    def match(self, way: CandidatePath, *, tree: bool) -> RuleMatch:
        """Whether a path is covered; with `tree`, also whether something below it is."""
        names = way.folded
        if not way.plain:
            return self._match_patterns(self._folded, names, tree=tree)
        if _tree_matches(self._tree, names, above=tree):
            return RuleMatch.YES
        if not names:
            return self._match_patterns(self._folded, names, tree=tree)
        globs = self._below.get(names[0], self._anywhere)
        return self._match_patterns(globs, names, tree=tree) if globs else RuleMatch.NO

    def _match_patterns(
        self, rules: Sequence[tuple[str, ...]], names: tuple[str, ...], *, tree: bool
    ) -> RuleMatch:
        found = RuleMatch.NO
        for rule in rules:
            if covers(rule, names, tree=tree):
                if _certainly(rule, names):
                    return RuleMatch.YES
                found = RuleMatch.MAYBE
        return found

    def contains(self, way: CandidatePath) -> bool:
        """Whether a path is certainly covered."""
        return any(
            _certainly(rule, way.names) and covers(rule, way.names, tree=False)
            for rule in self._exact
        )


class CandidatePath(Struct, frozen=True, gc=False):
    """A path that an effect may touch, split into names."""

    names: tuple[str, ...]
    folded: tuple[str, ...]
    plain: bool
    """Whether it has no wildcards and no escapes."""


def candidate_path(names: tuple[str, ...]) -> CandidatePath:
    """Prepare a path for matching."""
    text = "/".join(names)
    folded = text.casefold()
    return CandidatePath(
        names, names if folded == text else tuple(folded.split("/")), is_plain(text) or not names
    )


def _certainly(rule: Sequence[str], route: Sequence[str]) -> bool:
    """Whether a match is certain: the path has no wildcard before the rule's path ends."""
    plain = 0
    while plain < len(route) and _is_name(route[plain]):
        plain += 1
    if plain < len(route):
        return covers(rule, route[:plain], tree=False) and not all(part == "**" for part in rule)
    if covers(rule, route, tree=False):
        return True
    return all(is_plain(part) for part in rule[: len(route) + 1])


def _is_name(part: str) -> bool:
    return is_plain(part) or not any(sign in re.sub(r"\\.", "", part) for sign in "*?[\0")


def _absolute(path: str, workspace: str, home: str) -> tuple[str, ...]:
    if path == "~" or path.startswith("~/"):
        path = escape(home) + path[1:]
    elif not path.startswith(("/", "**")):
        path = f"{escape(workspace)}/{path}"
    made: list[str] = []
    for part in path.split("/"):
        if part == "..":
            raise ConfigError(f"a rule's path may not contain `..`: {path!r}")
        if part not in ("", "."):
            made.append(part)
    return tuple(made)


class DomainPatterns:
    """Host names, domain suffixes and IP networks that match hosts."""

    def __init__(self, domains: Sequence[str]) -> None:
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for domain in domains:
            self._add(domain)

    def _add(self, text: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(text.strip("[]"), strict=False))
            return
        except ValueError:
            pass  # not an address, so a name
        if text == "*":
            self._suffixes.append("")
            return
        name = canonical(text.removeprefix("*."))
        if not name or "*" in name:
            raise ConfigError(
                f"{text!r} is not a domain; write example.org, *.example.org or an IP address"
            )
        if text.startswith("*."):
            self._suffixes.append(f".{name}")
        else:
            self._names.add(name)

    def match(self, host: HostEffect) -> RuleMatch:
        """Whether a host matches."""
        name = host.name
        if not name:
            return RuleMatch.MAYBE if host.sure else RuleMatch.NO
        if name in self._names or any(name.endswith(suffix) for suffix in self._suffixes):
            return RuleMatch.YES
        if not self._networks or not (name[-1].isdecimal() or ":" in name):
            return RuleMatch.NO
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return RuleMatch.NO
        return (
            RuleMatch.YES if any(address in network for network in self._networks) else RuleMatch.NO
        )


class ArgumentGlobs(Struct, frozen=True):
    """Globs for the arguments of a tool, by name."""

    globs: dict[str, str]

    def matches(self, arguments: dict[str, JSON]) -> bool:
        """Whether every glob matches its argument."""
        return all(
            key in arguments and re.match(translate(glob), _as_text(arguments[key])) is not None
            for key, glob in self.globs.items()
        )


def _as_text(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
