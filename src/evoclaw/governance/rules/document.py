"""A rules file: TOML, checked key by key."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.toml import MAX_TOML_BYTES, parse_toml
from evoclaw.shell.known_programs import STARTING_PROGRAMS


class RuleAction(StrEnum):
    """What a rule does with a call, from the weakest to the strongest."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def weight(self) -> int:
        """Deny beats ask beats allow."""
        return _WEIGHTS[self]


_WEIGHTS = {RuleAction.ALLOW: 0, RuleAction.ASK: 1, RuleAction.DENY: 2}


class RuleAccess(StrEnum):
    """Which access to its paths a rule matches."""

    READ = "read"
    WRITE = "write"
    ANY = "any"


class CallExample(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of any tool, as an example."""

    tool: str
    arguments: dict[str, JSON] = {}


class Rule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule. All its conditions must match."""

    name: str
    then: RuleAction
    tools: tuple[str, ...] = ()
    """Names of tools, or globs; empty matches every tool."""
    programs: tuple[str, ...] = ()
    """Names of programs without their folders, or globs."""
    arguments: tuple[str, ...] = ()
    """Each must match a word of the command: globs, `a|b` for either, `-f` also within `-rf`."""
    paths: tuple[str, ...] = ()
    """Absolute, below `~/`, or relative to the workspace; each covers everything below it."""
    access: RuleAccess = RuleAccess.ANY
    domains: tuple[str, ...] = ()
    """`example.org`, `*.example.org`, an address, or a network such as `10.0.0.0/8`."""
    env: tuple[str, ...] = ()
    """Names of variables, or globs."""
    where: dict[str, str] = {}
    """Arguments of the tool by name, with the globs that they must match."""
    reason: str = ""
    """For the model."""
    for_people: str = ""
    allows: tuple[str | CallExample, ...] = ()
    """Commands or calls that it must not match; for an allow rule, that must be allowed."""
    denies: tuple[str | CallExample, ...] = ()
    """Commands or calls that it must match; for an allow rule, that must not be allowed."""


class RuleDocument(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rules file."""

    default: RuleAction = RuleAction.ALLOW
    """For programs that no rule matches; `deny` makes the allow rules an allowlist: then the next
    three are `deny` too, unless the file sets them."""
    other_tools: RuleAction = RuleAction.ALLOW
    """For calls of tools other than the shell that no rule matches."""
    unreadable: RuleAction = RuleAction.ASK
    """For commands that cannot be analysed; never `allow`."""
    code: RuleAction = RuleAction.ASK
    """For programs that get code of another language, which is not analysed."""
    environment: RuleAction = RuleAction.ASK
    """For environment variables that make programs load or run other code."""
    rules: tuple[Rule, ...] = ()


def parse_rules(text: str, name: str) -> RuleDocument:
    """Read rules; invalid rules are a `ConfigError`."""
    table = parse_toml(text, name)
    try:
        found = _close_allowlist(msgspec.convert(table, RuleDocument), table)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{name}: {_located(str(problem), table)}") from None
    _check(found, name)
    return found


def read_rules(path: Path) -> RuleDocument:
    """Read a rules file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOML_BYTES + 1)
        return parse_rules(data.decode(), str(path))
    except OSError as problem:
        raise ConfigError(f"cannot read the rules file {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def shipped_rules() -> RuleDocument:
    """The rules that come with this package."""
    return read_rules(Path(__file__).with_name("default.toml"))


def programs_that_start_others(document: RuleDocument) -> tuple[str, ...]:
    """Programs on an allowlist that start other programs, which no rule judges."""
    if document.default is RuleAction.ALLOW:
        return ()
    globs = [
        glob for rule in document.rules if rule.then is RuleAction.ALLOW for glob in rule.programs
    ]
    return tuple(
        sorted(name for name in STARTING_PROGRAMS if any(fnmatchcase(name, glob) for glob in globs))
    )


def _close_allowlist(found: RuleDocument, table: dict[str, JSON]) -> RuleDocument:
    """With an allowlist, what cannot be analysed is not on it."""
    if found.default is not RuleAction.DENY:
        return found
    unset = (key for key in ("unreadable", "code", "environment") if key not in table)
    return msgspec.structs.replace(found, **dict.fromkeys(unset, RuleAction.DENY))


def _located(problem: str, table: dict[str, JSON]) -> str:
    """Name the rule where msgspec gives only its index."""
    head, _, tail = problem.partition("$.rules[")
    number, _, rest = tail.partition("]")
    rules = table.get("rules")
    if not number.isdecimal() or not isinstance(rules, list):
        return problem
    found = cast("list[JSON]", rules)[int(number)]
    named = cast("dict[str, JSON]", found).get("name") if isinstance(found, dict) else None
    return f"rule {named or int(number) + 1}: {head}{rest}".replace(" - at `", ", at `")


def _check(found: RuleDocument, name: str) -> None:
    if found.unreadable is RuleAction.ALLOW:
        raise ConfigError(f"{name}: `unreadable` may be ask or deny, never allow")
    seen: set[str] = set()
    for rule in found.rules:
        where = f"{name}, rule {rule.name!r}"
        if not rule.name or not rule.name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"{where}: a name has only letters, digits and hyphens")
        if rule.name in seen:
            raise ConfigError(f"{where}: another rule has this name; rename one of them")
        seen.add(rule.name)
        named = (rule.tools, rule.programs, rule.arguments, rule.paths, rule.domains, rule.env)
        if not any(named) and not rule.where:
            raise ConfigError(f"{where}: the rule has no condition, so it would match every call")
        if rule.arguments and not rule.programs:
            raise ConfigError(f"{where}: `arguments` needs `programs`; name them too")
        if rule.access is not RuleAccess.ANY and not rule.paths:
            raise ConfigError(f"{where}: `access` needs `paths`; name them too")
        if not rule.allows and not rule.denies:
            raise ConfigError(f"{where}: the rule has no examples; add `allows` or `denies`")
