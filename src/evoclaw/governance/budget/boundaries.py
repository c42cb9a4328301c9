"""The paths, commands and hosts that a run's budget allows (EF-01 to EF-04)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from urllib.parse import urlsplit

from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import ALLOW, Ask, Deny, Verdict
from evoclaw.core.tools import Call, Effect
from evoclaw.governance.budget.call_usage import clean_path, named_files, writes_files
from evoclaw.governance.budget.settings import AllowedLocations


class EnforcementResult(StrEnum):
    """The result of an enforcement point."""

    ALLOWED = "allowed"
    BLOCKED = "blocked"
    WARNED = "warned"
    """The call may run if a person agrees."""
    ESCALATED = "escalated"
    """Only a person can decide."""


class BoundaryFinding(Struct, frozen=True, gc=False):
    """The result of one enforcement point, with its reason."""

    result: EnforcementResult
    point: str = ""
    """`EF-01` to `EF-08`."""
    reason: str = ""


WITHIN_BOUNDARIES = BoundaryFinding(EnforcementResult.ALLOWED)
CommandCheck = Callable[[str], BoundaryFinding]
"""Checks a command line: EF-03."""
_HOST_KEYS = frozenset({"url", "urls", "uri", "address", "domain", "host", "hostname"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def verdict_of(finding: BoundaryFinding) -> Verdict:
    """The verdict for a finding: allow, deny or ask."""
    if finding is WITHIN_BOUNDARIES:
        return ALLOW
    match finding.result:
        case EnforcementResult.ALLOWED:
            return ALLOW
        case EnforcementResult.BLOCKED:
            return Deny("budget_" + finding.point.lower().replace("-", ""), finding.reason)
        case EnforcementResult.WARNED | EnforcementResult.ESCALATED:
            return Ask("budget_" + finding.point.lower().replace("-", ""), finding.reason)


class Boundaries:
    """Checks the paths, commands and hosts that a call names in its arguments."""

    def __init__(self, allowed: AllowedLocations, commands: CommandCheck | None = None) -> None:
        self._read = None if allowed.read is None else _patterns(allowed.read)
        self._write = None if allowed.write is None else _patterns(allowed.write)
        self._domains = None if allowed.domains is None else tuple(map(_host, allowed.domains))
        self._commands = commands
        self._unrestricted = self._read is self._write is self._domains is None and commands is None

    def check(self, call: Call) -> BoundaryFinding:
        """The first finding that does not allow the call."""
        if self._unrestricted:
            return WITHIN_BOUNDARIES
        for finding in self._findings(call):
            if finding.result is not EnforcementResult.ALLOWED:
                return finding
        return WITHIN_BOUNDARIES

    def _findings(self, call: Call) -> Iterator[BoundaryFinding]:
        held = call.tool.permissions
        if "shell" in held:
            yield self._shell(call)
        if writes_files(call):
            yield from (self.check_file_write(path) for path in named_files(call) or (".",))
        elif "file_read" in held and call.tool.effect is Effect.READ:
            yield from (self.check_file_read(path) for path in _read_paths(call))
        if "network" in held:
            yield from self._network(call)

    def check_file_read(self, path: str) -> BoundaryFinding:
        """EF-01: may this be read?"""
        return _check_path(self._read, path, "EF-01", "read")

    def check_file_write(self, path: str) -> BoundaryFinding:
        """EF-02: may this be written?"""
        return _check_path(self._write, path, "EF-02", "write")

    def check_command(self, command: str) -> BoundaryFinding:
        """EF-03: may this command run?"""
        if self._commands is not None:
            return self._commands(command)
        if self._read is self._write is self._domains is None:
            return WITHIN_BOUNDARIES
        # A command may reach any path or host; this check cannot tell that it stays inside.
        text = "the paths and hosts of this budget cannot be checked for a command"
        return BoundaryFinding(EnforcementResult.ESCALATED, "EF-03", text)

    def check_network(self, domain: str) -> BoundaryFinding:
        """EF-04: may this host be reached?"""
        if self._domains is None or _matches_domain(_host(domain), self._domains):
            return WITHIN_BOUNDARIES
        allowed = ", ".join(self._domains) or "none"
        text = f"this run may not reach the host {domain[:100]!r} (allowed: {allowed})"
        return BoundaryFinding(EnforcementResult.BLOCKED, "EF-04", text)

    def _shell(self, call: Call) -> BoundaryFinding:
        command = call.arguments.get("command")
        return self.check_command(command if isinstance(command, str) else "")

    def _network(self, call: Call) -> Iterator[BoundaryFinding]:
        if self._domains is None:
            return
        hosts = list(_hosts(call.arguments))
        if not hosts:
            text = f"{call.name} does not name the host that it connects to"
            yield BoundaryFinding(EnforcementResult.ESCALATED, "EF-04", text)
        yield from (self.check_network(host) for host in hosts)


def _read_paths(call: Call) -> tuple[str, ...]:
    """The paths that a call reads; the workspace if it names none."""
    if not call.tool.resources:
        return ()
    return named_files(call) or (".",)


def _check_path(
    patterns: tuple[re.Pattern[str], ...] | None, path: str, point: str, access: str
) -> BoundaryFinding:
    if patterns is None:
        return WITHIN_BOUNDARIES
    clean = clean_path(path)
    if any(pattern.fullmatch(clean) for pattern in patterns):
        return WITHIN_BOUNDARIES
    text = f"{path[:200]!r} is outside the paths that this run may {access}; use a path inside them"
    return BoundaryFinding(EnforcementResult.BLOCKED, point, text)


def _patterns(given: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(_translated(clean_path(path)), re.DOTALL) for path in given)


def _translated(pattern: str) -> str:
    """A path pattern as a regular expression; a folder covers everything below it."""
    if pattern in ("**", "."):
        return r"(?!\.\./|/)(?!\.\.$).*"
    parts: list[str] = []
    for token in re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", pattern):
        known = {
            "**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]",
        }  # fmt: skip
        parts.append(known.get(token) or re.escape(token))
    below = "" if "*" in pattern or "?" in pattern else "(?:/.*)?"
    return "".join(parts) + below


def _hosts(value: JSON, named: bool = False) -> Iterator[str]:
    """Every host that the arguments name, at any depth."""
    if is_object(value):
        for key, inner in value.items():
            yield from _hosts(inner, key.lower() in _HOST_KEYS)
    elif is_array(value):
        for inner in value:
            yield from _hosts(inner, named)
    elif isinstance(value, str) and (found := _SCHEME.match(value.strip())):
        yield _host_of_url(value.strip()[found.end() - 2 :])
    elif isinstance(value, str) and named and value.strip():
        yield _host_of_url("//" + value.strip())


def _host_of_url(text: str) -> str:
    try:
        return urlsplit(text).hostname or "?"
    except ValueError:
        return "?"  # not a valid host name, so it is blocked


def _host(name: str) -> str:
    name = name.strip().rstrip(".").lower()
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return "?"


def _matches_domain(host: str, domains: Iterable[str]) -> bool:
    return any(
        host.endswith(domain[1:]) if domain.startswith("*.") else host == domain
        for domain in domains
    )
