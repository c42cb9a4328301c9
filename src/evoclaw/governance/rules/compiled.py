"""Rules made ready for many calls: what each says about the effects of one."""

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
    """A place, and every path that it may be."""

    place: PathEffect
    ways: tuple[Way, ...] | None
    """None if it can be any path."""


def routes_of(places: Sequence[PathEffect], disk: Disk | None) -> tuple[Route, ...]:
    """Follow places."""
    found: dict[str, tuple[Way, ...] | None] = {"": None}
    made: list[Route] = []
    for place in places:
        pattern = place.pattern
        if pattern not in found:
            found[pattern] = _follow(pattern, disk)
        made.append(Route(place, found[pattern]))
    return tuple(made)


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
    lead = "/" + "/".join(lexical)
    ways += [
        way(tuple(_escape_name(part) for part in one.split("/") if part))
        for one in real
        if one != lead
    ]
    return tuple(ways)


def _escape_name(name: str) -> str:
    return name if is_plain(name) else escape(name)


class Seen(Struct, frozen=True, gc=False):
    """One call with its effects, looked at by many rules."""

    call: Call
    effects: Effects
    routes: tuple[Route, ...]

    @property
    def shell(self) -> bool:
        """Whether it is a command."""
        return self.call.tool.name in SHELL_TOOLS


class Compiled:
    """One rule."""

    def __init__(self, rule: Rule, workspace: str, home: str) -> None:
        self.rule = rule
        strict = rule.then is not Then.ALLOW
        self._tools = Names(rule.tools, fold=strict) if rule.tools else None
        self._programs = Names(rule.programs, fold=strict) if rule.programs else None
        self._arguments = tuple(Argument(one) for one in rule.arguments)
        self._paths = Paths(rule.paths, workspace, home) if rule.paths else None
        self._domains = Domains(rule.domains) if rule.domains else None
        self._env = Names(rule.env, fold=strict) if rule.env else None
        self._where = Where(rule.where) if rule.where else None
        self.looks_at_paths = bool(rule.paths)
        """Whether it speaks about paths."""
        self._reach = None if rule.access is Reach.ANY else PathAccess(rule.access.value)

    def about(self, call: Call) -> bool:
        """Whether it speaks about this tool at all."""
        if self._tools is not None and not self._tools.fit(call.tool.name):
            return False
        return self._where is None or self._where.hit(call.arguments)

    def hit(self, seen: Seen) -> tuple[Hit, str]:
        """Whether a rule that denies or asks hits the call, and by what."""
        effects = seen.effects
        if (self._tools is not None or self._where is not None) and not self.about(seen.call):
            return _NO
        found, by = Hit.YES, ""
        if self._paths is not None:
            found, by = self._path(seen)
            if not found:
                return _NO
        if self._domains is not None:
            hit, said = self._host(effects.hosts, seen)
            if not hit:
                return _NO
            found, by = min(found, hit), by or said
        elif self._programs is not None and self._paths is None:
            found, by = self._program(effects.programs)
            if not found:
                return _NO
        if self._env is not None:
            names = [one.name for one in effects.settings if self._env.fit(one.name)]
            if not names:
                return _NO
            by = by or names[0]
        return found, by or seen.call.tool.name

    def _program(self, programs: Sequence[ProgramEffect]) -> tuple[Hit, str]:
        best, names = _NO, self._programs
        for one in programs if names is not None else ():
            hit = program_hit(names, self._arguments, one) if names is not None else Hit.NO
            if hit > best[0]:
                best = hit, one.shown
                if hit is Hit.YES:
                    break
        return best

    def _path(self, seen: Seen) -> tuple[Hit, str]:
        best, paths = _NO, self._paths
        for one in seen.routes if paths is not None else ():
            place = one.place
            if self._reach is not None and place.access is not self._reach:
                continue
            hit = Hit.MAYBE
            if one.ways is not None and paths is not None:
                hit = max([paths.hit(way, tree=place.tree) for way in one.ways])
            if hit > best[0] and self._programs is not None:
                hit = min(hit, self._by(place.by, seen))
            if hit > best[0]:
                best = hit, _shown(one)
                if hit is Hit.YES:
                    break
        return best

    def _host(self, hosts: Sequence[HostEffect], seen: Seen) -> tuple[Hit, str]:
        best, domains = _NO, self._domains
        for one in hosts if domains is not None else ():
            hit = domains.hit(one) if domains is not None else Hit.NO
            hit = min(hit, self._by(one.by, seen))
            if hit > best[0]:
                best = hit, one.name or "any host"
        return best

    def _by(self, name: str, seen: Seen) -> Hit:
        """Whether what is done is done by a program that the rule names."""
        if self._programs is None:
            return Hit.YES
        if not name:
            return Hit.MAYBE if seen.shell else Hit.NO
        if not self._programs.fit(name):
            return Hit.NO
        return max(
            (
                words_fit(self._arguments, one.words)
                for one in seen.effects.programs
                if one.name == name
            ),
            default=Hit.MAYBE,
        )

    def allows_program(self, program: ProgramEffect, seen: Seen) -> bool:
        """Whether a rule that allows covers a program, with all it touches."""
        if self._programs is None and (self._tools is None or self._env is not None):
            return False
        if self._programs is not None and not (program.name and self._programs.fit(program.name)):
            return False
        if program.path and not program.path.startswith(("/bin/", "/usr/bin/", "/usr/local/bin/")):
            # Another program may bear the name; only its path says which it is.
            return False
        if words_fit(self._arguments, program.words) is not Hit.YES:
            return False
        return self._within(seen, program.name)

    def allows_rest(self, seen: Seen) -> bool:
        """Whether a rule that allows covers what no program of the command does by itself."""
        return self._programs is None and self._env is None and self._within(seen, "")

    def allows_call(self, seen: Seen) -> bool:
        """Whether a rule that allows covers a call of another tool."""
        if self._programs is not None or self._env is not None:
            return False
        return self._within(seen, "")

    def allows_setting(self, setting: SettingEffect) -> bool:
        """Whether a rule that allows covers a variable."""
        return self._env is not None and self._env.fit(setting.name)

    def _within(self, seen: Seen, by: str) -> bool:
        if self._paths is not None:
            mine = [one for one in seen.routes if one.place.by == by and one.place.sure]
            if not mine or not all(self._contains(one) for one in mine):
                return False
        if self._domains is not None:
            hosts = [one for one in seen.effects.hosts if one.by == by and one.sure]
            domains = self._domains
            return bool(hosts) and all(domains.hit(one) is Hit.YES for one in hosts)
        return True

    def _contains(self, one: Route) -> bool:
        if one.ways is None or self._paths is None:
            return False
        if self._reach is not None and one.place.access is not self._reach:
            return False
        return all(self._paths.contain(way) for way in one.ways)


def _shown(one: Route) -> str:
    pattern = one.place.pattern
    return f"{one.place.access.value} {pattern.replace(chr(92), '') or 'a path only known later'}"


class Sieve:
    """All rules at once: most calls touch nothing that any of them names."""

    def __init__(self, rules: Sequence[Compiled], workspace: str, home: str) -> None:
        self._rules = tuple((1 << number, one) for number, one in enumerate(rules))
        self._always = self._by_path = self._by_host = self._by_program = self._by_glob = 0
        self._by_name: dict[str, int] = {}
        globs: list[str] = []
        paths: list[str] = []
        for bit, one in self._rules:
            if one.rule.paths:
                self._by_path |= bit
                paths += one.rule.paths
            elif one.rule.domains:
                self._by_host |= bit
            elif one.rule.programs:
                globs += self._add_programs(one.rule.programs, bit)
            else:
                self._always |= bit
        self._globs = Names(globs, fold=True)
        self._begins = tuple(re.split(r"[*?\[]", one, maxsplit=1)[0].casefold() for one in globs)
        """What a name must begin with to fit a glob."""
        self._paths = Paths(paths, workspace, home)

    def _add_programs(self, programs: Sequence[str], bit: int) -> list[str]:
        """Note a rule by the names it knows; those that are globs come back."""
        self._by_program |= bit
        globs = [one for one in programs if is_glob(one)]
        for name in programs:
            folded = name.casefold()
            self._by_name[folded] = self._by_name.get(folded, 0) | bit
        if globs:
            self._by_glob |= bit
        return globs

    def held(self, seen: Seen) -> Sequence[Compiled]:
        """The rules that may speak about a call, in their order: no other can hit it."""
        effects, found = seen.effects, self._always
        if effects.hosts:
            found |= self._by_host
        if seen.routes and self._holds_path(seen.routes):
            found |= self._by_path
        if effects.programs and self._by_program:
            found |= self._named(effects.programs)
        return [one for bit, one in self._rules if found & bit] if found else ()

    def _named(self, programs: Sequence[ProgramEffect]) -> int:
        found, by_name = 0, self._by_name
        for one in programs:
            if not one.name:
                return self._by_program
            names = [one.name]
            if not one.plain:
                # A program that we do not know may run the one that it is given the name of.
                texts = [word.text for word in one.words]
                names += [text.rpartition("/")[2] for text in texts if text is not None]
            for name in names:
                folded = name.casefold()
                if folded in by_name:
                    found |= by_name[folded]
                if folded.startswith(self._begins) and self._globs.fit(name):
                    found |= self._by_glob
        return found

    def _holds_path(self, routes: Sequence[Route]) -> bool:
        """Whether some rule may speak about one of these paths."""
        paths = self._paths
        for one in routes:
            if one.ways is None:
                return True
            for each in one.ways:
                if paths.hit(each, tree=one.place.tree):
                    return True
        return False
