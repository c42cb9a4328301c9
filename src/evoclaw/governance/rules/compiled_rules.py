"""Compiled rules: each matches the effects of a call, and an index finds the rules to try."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from evoclaw.core.tools import Call
from evoclaw.governance.rules.conditions import (
    ArgumentGlobs,
    ArgumentPattern,
    CandidatePath,
    DomainPatterns,
    NamePatterns,
    PathPatterns,
    RuleMatch,
    candidate_path,
    is_glob,
    match_program,
    match_words,
)
from evoclaw.governance.rules.document import Rule, RuleAccess, RuleAction
from evoclaw.governance.rules.path_resolver import LocalPathResolver
from evoclaw.governance.rules.patterns import is_plain, path_parts
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

_NO_MATCH = (RuleMatch.NO, "")


class ResolvedPath(Struct, frozen=True, gc=False):
    """A path that a call touches, and every real path that it may be."""

    effect: PathEffect
    candidates: tuple[CandidatePath, ...] | None
    """None if it may be any path."""


def resolve_paths(
    effects: Sequence[PathEffect], disk: LocalPathResolver | None
) -> tuple[ResolvedPath, ...]:
    """Resolve the paths of a call; each pattern is resolved once."""
    found: dict[str, tuple[CandidatePath, ...] | None] = {"": None}
    resolved: list[ResolvedPath] = []
    for place in effects:
        pattern = place.pattern
        if pattern not in found:
            found[pattern] = _candidates(pattern, disk)
        resolved.append(ResolvedPath(place, found[pattern]))
    return tuple(resolved)


def _candidates(pattern: str, disk: LocalPathResolver | None) -> tuple[CandidatePath, ...] | None:
    lexical = path_parts(pattern)
    if lexical is None:
        return None
    ways = [candidate_path(lexical)]
    if disk is None:
        return tuple(ways)
    real = disk.resolve(pattern)
    if real is None:
        return None
    as_written = "/" + "/".join(lexical)
    ways += [
        candidate_path(tuple(_escape_name(part) for part in path.split("/") if part))
        for path in real
        if path != as_written
    ]
    return tuple(ways)


def _escape_name(name: str) -> str:
    return name if is_plain(name) else escape(name)


class CallEffects(Struct, frozen=True, gc=False):
    """A call with its effects, matched against many rules."""

    call: Call
    effects: Effects
    paths: tuple[ResolvedPath, ...]

    @property
    def shell(self) -> bool:
        """Whether the call runs a shell command."""
        return self.call.tool.name in SHELL_TOOLS


class CompiledRule:
    """A rule, prepared to match many calls."""

    def __init__(self, rule: Rule, workspace: str, home: str) -> None:
        self.rule = rule
        strict = rule.then is not RuleAction.ALLOW
        self._tools = NamePatterns(rule.tools, fold=strict) if rule.tools else None
        self._programs = NamePatterns(rule.programs, fold=strict) if rule.programs else None
        self._arguments = tuple(ArgumentPattern(pattern) for pattern in rule.arguments)
        self._paths = PathPatterns(rule.paths, workspace, home) if rule.paths else None
        self._domains = DomainPatterns(rule.domains) if rule.domains else None
        self._env = NamePatterns(rule.env, fold=strict) if rule.env else None
        self._where = ArgumentGlobs(rule.where) if rule.where else None
        self.looks_at_paths = bool(rule.paths)
        """Whether the rule names paths."""
        self._access = None if rule.access is RuleAccess.ANY else PathAccess(rule.access.value)

    def applies_to(self, call: Call) -> bool:
        """Whether the rule applies to this tool and its arguments at all."""
        if self._tools is not None and not self._tools.matches(call.tool.name):
            return False
        return self._where is None or self._where.matches(call.arguments)

    def match(self, seen: CallEffects) -> tuple[RuleMatch, str]:
        """Whether a rule that denies or asks matches the call, and by which effect."""
        effects = seen.effects
        if (self._tools is not None or self._where is not None) and not self.applies_to(seen.call):
            return _NO_MATCH
        found, by = RuleMatch.YES, ""
        if self._paths is not None:
            found, by = self._match_path(seen)
            if not found:
                return _NO_MATCH
        if self._domains is not None:
            hit, host = self._match_host(effects.hosts, seen)
            if not hit:
                return _NO_MATCH
            found, by = min(found, hit), by or host
        elif self._programs is not None and self._paths is None:
            found, by = self._match_program(effects.programs)
            if not found:
                return _NO_MATCH
        if self._env is not None:
            names = [
                setting.name for setting in effects.settings if self._env.matches(setting.name)
            ]
            if not names:
                return _NO_MATCH
            by = by or names[0]
        return found, by or seen.call.tool.name

    def _match_program(self, programs: Sequence[ProgramEffect]) -> tuple[RuleMatch, str]:
        best, names = _NO_MATCH, self._programs
        for program in programs if names is not None else ():
            hit = (
                match_program(names, self._arguments, program)
                if names is not None
                else RuleMatch.NO
            )
            if hit > best[0]:
                best = hit, program.shown
                if hit is RuleMatch.YES:
                    break
        return best

    def _match_path(self, seen: CallEffects) -> tuple[RuleMatch, str]:
        best, paths = _NO_MATCH, self._paths
        for resolved in seen.paths if paths is not None else ():
            effect = resolved.effect
            if self._access is not None and effect.access is not self._access:
                continue
            hit = RuleMatch.MAYBE
            if resolved.candidates is not None and paths is not None:
                hit = max([paths.match(path, tree=effect.tree) for path in resolved.candidates])
            if hit > best[0] and self._programs is not None:
                hit = min(hit, self._match_actor(effect.by, seen))
            if hit > best[0]:
                best = hit, self._shown(resolved)
                if hit is RuleMatch.YES:
                    break
        return best

    def _shown(self, resolved: ResolvedPath) -> str:
        effect, paths = resolved.effect, self._paths
        path = effect.pattern.replace(chr(92), "") or "a path that is known only at run time"
        if effect.tree and paths is not None and resolved.candidates is not None:
            itself = max([paths.match(candidate, tree=False) for candidate in resolved.candidates])
            if not itself:
                path = f"any file below {path.removesuffix('/.')}"
        return f"{effect.access.value} {path}"

    def _match_host(self, hosts: Sequence[HostEffect], seen: CallEffects) -> tuple[RuleMatch, str]:
        best, domains = _NO_MATCH, self._domains
        for host in hosts if domains is not None else ():
            hit = domains.match(host) if domains is not None else RuleMatch.NO
            hit = min(hit, self._match_actor(host.by, seen))
            if hit > best[0]:
                best = hit, host.name or "any host"
        return best

    def _match_actor(self, name: str, seen: CallEffects) -> RuleMatch:
        """Whether the effect comes from a program that the rule names."""
        if self._programs is None:
            return RuleMatch.YES
        if not name:
            return RuleMatch.MAYBE if seen.shell else RuleMatch.NO
        if not self._programs.matches(name):
            return RuleMatch.NO
        return max(
            (
                match_words(self._arguments, program.words)
                for program in seen.effects.programs
                if program.name == name
            ),
            default=RuleMatch.MAYBE,
        )

    def allows_program(self, program: ProgramEffect, seen: CallEffects) -> bool:
        """Whether an allow rule covers a program and everything it touches."""
        if self._programs is None and (self._tools is None or self._env is not None):
            return False
        if self._programs is not None and not (
            program.name and self._programs.matches(program.name)
        ):
            return False
        if program.path and not program.path.startswith(("/bin/", "/usr/bin/", "/usr/local/bin/")):
            # Another program may have the same name; only the path identifies it.
            return False
        if match_words(self._arguments, program.words) is not RuleMatch.YES:
            return False
        return self._covers(seen, program.name)

    def allows_rest(self, seen: CallEffects) -> bool:
        """Whether an allow rule covers the effects of the shell itself, such as redirections."""
        return self._programs is None and self._env is None and self._covers(seen, "")

    def allows_call(self, seen: CallEffects) -> bool:
        """Whether an allow rule covers a call of a tool other than the shell."""
        if self._programs is not None or self._env is not None:
            return False
        return self._covers(seen, "")

    def allows_setting(self, setting: SettingEffect) -> bool:
        """Whether an allow rule covers setting an environment variable."""
        return self._env is not None and self._env.matches(setting.name)

    def _covers(self, seen: CallEffects, by: str) -> bool:
        if self._paths is not None:
            own = [path for path in seen.paths if path.effect.by == by and path.effect.sure]
            if not own or not all(self._contains(path) for path in own):
                return False
        if self._domains is not None:
            hosts = [host for host in seen.effects.hosts if host.by == by and host.sure]
            domains = self._domains
            return bool(hosts) and all(domains.match(host) is RuleMatch.YES for host in hosts)
        return True

    def _contains(self, resolved: ResolvedPath) -> bool:
        if resolved.candidates is None or self._paths is None:
            return False
        if self._access is not None and resolved.effect.access is not self._access:
            return False
        return all(self._paths.contains(path) for path in resolved.candidates)


class RuleIndex:
    """Finds the rules that may match a call; for most calls there are none."""

    def __init__(self, rules: Sequence[CompiledRule], workspace: str, home: str) -> None:
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
        self._globs = NamePatterns(globs, fold=True)
        self._glob_prefixes = tuple(
            re.split(r"[*?\[]", glob, maxsplit=1)[0].casefold() for glob in globs
        )
        """The literal prefixes of the globs; a name must start with one to match."""
        self._paths = PathPatterns(paths, workspace, home)

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

    def candidates(self, seen: CallEffects) -> Sequence[CompiledRule]:
        """The rules that may match a call, in their order; no other rule can."""
        effects, found = seen.effects, self._always
        if effects.hosts:
            found |= self._by_host
        if seen.paths and self._matches_path(seen.paths):
            found |= self._by_path
        if effects.programs and self._by_program:
            found |= self._rules_for_programs(effects.programs)
        return [rule for bit, rule in self._rules if found & bit] if found else ()

    def _rules_for_programs(self, programs: Sequence[ProgramEffect]) -> int:
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
                if folded.startswith(self._glob_prefixes) and self._globs.matches(name):
                    found |= self._by_glob
        return found

    def _matches_path(self, routes: Sequence[ResolvedPath]) -> bool:
        """Whether some rule may match one of these paths."""
        paths = self._paths
        for resolved in routes:
            if resolved.candidates is None:
                return True
            for path in resolved.candidates:
                if paths.match(path, tree=resolved.effect.tree):
                    return True
        return False
