"""Compiled rules: each matches the effects of a call, and an index finds the rules to try."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from evoclaw.core.tools import Call
from evoclaw.governance.rules.conditions import (
    Argument,
    Domains,
    Hit,
    Names,
    Paths,
    Way,
    Where,
    is_glob,
    program_hit,
    way,
    words_fit,
)
from evoclaw.governance.rules.disk import Disk
from evoclaw.governance.rules.document import Reach, Rule, Then
from evoclaw.governance.rules.patterns import is_plain, parts
from evoclaw.shell.calls import SHELL_TOOLS
from evoclaw.shell.effects import (
    Effects,
    HostEffect,
    PathAccess,
    PathEffect,
    ProgramEffect,
    SettingEffect,
    escape,
)

_NO = (Hit.NO, "")


class Route(Struct, frozen=True, gc=False):
    """A path that a call touches, and every real path that it may be."""

    place: PathEffect
    ways: tuple[Way, ...] | None
    """None if it may be any path."""


def routes_of(places: Sequence[PathEffect], disk: Disk | None) -> tuple[Route, ...]:
    """Resolve the paths of a call; each pattern is resolved once."""
    found: dict[str, tuple[Way, ...] | None] = {"": None}
    resolved: list[Route] = []
    for place in places:
        pattern = place.pattern
        if pattern not in found:
            found[pattern] = _follow(pattern, disk)
        resolved.append(Route(place, found[pattern]))
    return tuple(resolved)


def _follow(pattern: str, disk: Disk | None) -> tuple[Way, ...] | None:
    lexical = parts(pattern)
    if lexical is None:
        return None
    ways = [way(lexical)]
    if disk is None:
        return tuple(ways)
    real = disk.leads_to(pattern)
    if real is None:
        return None
    as_written = "/" + "/".join(lexical)
    ways += [
        way(tuple(_escape_name(part) for part in path.split("/") if part))
        for path in real
        if path != as_written
    ]
    return tuple(ways)


def _escape_name(name: str) -> str:
    return name if is_plain(name) else escape(name)


class Seen(Struct, frozen=True, gc=False):
    """A call with its effects, matched against many rules."""

    call: Call
    effects: Effects
    routes: tuple[Route, ...]

    @property
    def shell(self) -> bool:
        """Whether the call runs a shell command."""
        return self.call.tool.name in SHELL_TOOLS


class Compiled:
    """A rule, prepared to match many calls."""

    def __init__(self, rule: Rule, workspace: str, home: str) -> None:
        self.rule = rule
        strict = rule.then is not Then.ALLOW
        self._tools = Names(rule.tools, fold=strict) if rule.tools else None
        self._programs = Names(rule.programs, fold=strict) if rule.programs else None
        self._arguments = tuple(Argument(pattern) for pattern in rule.arguments)
        self._paths = Paths(rule.paths, workspace, home) if rule.paths else None
        self._domains = Domains(rule.domains) if rule.domains else None
        self._env = Names(rule.env, fold=strict) if rule.env else None
        self._where = Where(rule.where) if rule.where else None
        self.looks_at_paths = bool(rule.paths)
        """Whether the rule names paths."""
        self._reach = None if rule.access is Reach.ANY else PathAccess(rule.access.value)

    def about(self, call: Call) -> bool:
        """Whether the rule applies to this tool and its arguments at all."""
        if self._tools is not None and not self._tools.fit(call.tool.name):
            return False
        return self._where is None or self._where.hit(call.arguments)

    def hit(self, seen: Seen) -> tuple[Hit, str]:
        """Whether a rule that denies or asks matches the call, and by which effect."""
        effects = seen.effects
        if (self._tools is not None or self._where is not None) and not self.about(seen.call):
            return _NO
        found, by = Hit.YES, ""
        if self._paths is not None:
            found, by = self._path(seen)
            if not found:
                return _NO
        if self._domains is not None:
            hit, host = self._host(effects.hosts, seen)
            if not hit:
                return _NO
            found, by = min(found, hit), by or host
        elif self._programs is not None and self._paths is None:
            found, by = self._program(effects.programs)
            if not found:
                return _NO
        if self._env is not None:
            names = [setting.name for setting in effects.settings if self._env.fit(setting.name)]
            if not names:
                return _NO
            by = by or names[0]
        return found, by or seen.call.tool.name

    def _program(self, programs: Sequence[ProgramEffect]) -> tuple[Hit, str]:
        best, names = _NO, self._programs
        for program in programs if names is not None else ():
            hit = program_hit(names, self._arguments, program) if names is not None else Hit.NO
            if hit > best[0]:
                best = hit, program.shown
                if hit is Hit.YES:
                    break
        return best

    def _path(self, seen: Seen) -> tuple[Hit, str]:
        best, paths = _NO, self._paths
        for resolved in seen.routes if paths is not None else ():
            effect = resolved.place
            if self._reach is not None and effect.access is not self._reach:
                continue
            hit = Hit.MAYBE
            if resolved.ways is not None and paths is not None:
                hit = max([paths.hit(path, tree=effect.tree) for path in resolved.ways])
            if hit > best[0] and self._programs is not None:
                hit = min(hit, self._by(effect.by, seen))
            if hit > best[0]:
                best = hit, _shown(resolved)
                if hit is Hit.YES:
                    break
        return best

    def _host(self, hosts: Sequence[HostEffect], seen: Seen) -> tuple[Hit, str]:
        best, domains = _NO, self._domains
        for host in hosts if domains is not None else ():
            hit = domains.hit(host) if domains is not None else Hit.NO
            hit = min(hit, self._by(host.by, seen))
            if hit > best[0]:
                best = hit, host.name or "any host"
        return best

    def _by(self, name: str, seen: Seen) -> Hit:
        """Whether the effect comes from a program that the rule names."""
        if self._programs is None:
            return Hit.YES
        if not name:
            return Hit.MAYBE if seen.shell else Hit.NO
        if not self._programs.fit(name):
            return Hit.NO
        return max(
            (
                words_fit(self._arguments, program.words)
                for program in seen.effects.programs
                if program.name == name
            ),
            default=Hit.MAYBE,
        )

    def allows_program(self, program: ProgramEffect, seen: Seen) -> bool:
        """Whether an allow rule covers a program and everything it touches."""
        if self._programs is None and (self._tools is None or self._env is not None):
            return False
        if self._programs is not None and not (program.name and self._programs.fit(program.name)):
            return False
        if program.path and not program.path.startswith(("/bin/", "/usr/bin/", "/usr/local/bin/")):
            # Another program may have the same name; only the path identifies it.
            return False
        if words_fit(self._arguments, program.words) is not Hit.YES:
            return False
        return self._within(seen, program.name)

    def allows_rest(self, seen: Seen) -> bool:
        """Whether an allow rule covers the effects of the shell itself, such as redirections."""
        return self._programs is None and self._env is None and self._within(seen, "")

    def allows_call(self, seen: Seen) -> bool:
        """Whether an allow rule covers a call of a tool other than the shell."""
        if self._programs is not None or self._env is not None:
            return False
        return self._within(seen, "")

    def allows_setting(self, setting: SettingEffect) -> bool:
        """Whether an allow rule covers setting an environment variable."""
        return self._env is not None and self._env.fit(setting.name)

    def _within(self, seen: Seen, by: str) -> bool:
        if self._paths is not None:
            own = [path for path in seen.routes if path.place.by == by and path.place.sure]
            if not own or not all(self._contains(path) for path in own):
                return False
        if self._domains is not None:
            hosts = [host for host in seen.effects.hosts if host.by == by and host.sure]
            domains = self._domains
            return bool(hosts) and all(domains.hit(host) is Hit.YES for host in hosts)
        return True

    def _contains(self, resolved: Route) -> bool:
        if resolved.ways is None or self._paths is None:
            return False
        if self._reach is not None and resolved.place.access is not self._reach:
            return False
        return all(self._paths.contain(path) for path in resolved.ways)


def _shown(resolved: Route) -> str:
    effect = resolved.place
    path = effect.pattern.replace(chr(92), "") or "a path only known later"
    return f"{effect.access.value} {path}"


class Sieve:
    """Finds the rules that may match a call; for most calls there are none."""

    def __init__(self, rules: Sequence[Compiled], workspace: str, home: str) -> None:
        self._rules = tuple((1 << number, rule) for number, rule in enumerate(rules))
        self._always = self._by_path = self._by_host = self._by_program = self._by_glob = 0
        self._by_name: dict[str, int] = {}
        globs: list[str] = []
        paths: list[str] = []
        for bit, compiled in self._rules:
            if compiled.rule.paths:
                self._by_path |= bit
                paths += compiled.rule.paths
            elif compiled.rule.domains:
                self._by_host |= bit
            elif compiled.rule.programs:
                globs += self._add_programs(compiled.rule.programs, bit)
            else:
                self._always |= bit
        self._globs = Names(globs, fold=True)
        self._begins = tuple(re.split(r"[*?\[]", glob, maxsplit=1)[0].casefold() for glob in globs)
        """The literal prefixes of the globs; a name must start with one to match."""
        self._paths = Paths(paths, workspace, home)

    def _add_programs(self, programs: Sequence[str], bit: int) -> list[str]:
        """Index a rule by its program names; returns those that are globs."""
        self._by_program |= bit
        globs = [name for name in programs if is_glob(name)]
        for name in programs:
            folded = name.casefold()
            self._by_name[folded] = self._by_name.get(folded, 0) | bit
        if globs:
            self._by_glob |= bit
        return globs

    def held(self, seen: Seen) -> Sequence[Compiled]:
        """The rules that may match a call, in their order; no other rule can."""
        effects, found = seen.effects, self._always
        if effects.hosts:
            found |= self._by_host
        if seen.routes and self._holds_path(seen.routes):
            found |= self._by_path
        if effects.programs and self._by_program:
            found |= self._named(effects.programs)
        return [rule for bit, rule in self._rules if found & bit] if found else ()

    def _named(self, programs: Sequence[ProgramEffect]) -> int:
        found, by_name = 0, self._by_name
        for program in programs:
            if not program.name:
                return self._by_program
            names = [program.name]
            if not program.plain:
                # An unknown program may run a program that its arguments name.
                texts = [word.text for word in program.words]
                names += [text.rpartition("/")[2] for text in texts if text is not None]
            for name in names:
                folded = name.casefold()
                if folded in by_name:
                    found |= by_name[folded]
                if folded.startswith(self._begins) and self._globs.fit(name):
                    found |= self._by_glob
        return found

    def _holds_path(self, routes: Sequence[Route]) -> bool:
        """Whether some rule may match one of these paths."""
        paths = self._paths
        for resolved in routes:
            if resolved.ways is None:
                return True
            for path in resolved.ways:
                if paths.hit(path, tree=resolved.place.tree):
                    return True
        return False
