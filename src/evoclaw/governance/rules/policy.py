"""The policies for the chain: rules about what a call does, and tools that are switched off."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.rules.compiled import Compiled, Seen, Sieve, routes_of
from evoclaw.governance.rules.conditions import Hit
from evoclaw.governance.rules.disk import Disk
from evoclaw.governance.rules.document import Document, Then
from evoclaw.shell.calls import read_call
from evoclaw.shell.effects import Effects

INSTEAD = "Do it in another way, or tell the user what you would do and why."


class Finding(Struct, frozen=True, gc=False):
    """One reason for a verdict."""

    then: Then
    code: str
    """`rule:NAME`, `maybe:NAME` if that is not sure, `unreadable`, `code`, `environment`,
    `default`."""
    why: str
    """For people: what of the call it was."""
    reason: str
    """For the model."""
    for_people: str = ""


class Judgement(Struct, frozen=True):
    """All that was found about a call."""

    effects: Effects
    findings: tuple[Finding, ...]

    @property
    def decided(self) -> Finding | None:
        """The first of the strongest; None if nothing speaks against the call."""
        strongest: Finding | None = None
        for one in self.findings:
            if one.then is Then.DENY:
                return one
            strongest = strongest or (one if one.then is Then.ASK else None)
        return strongest

    @property
    def verdict(self) -> Verdict:
        """Deny beats ask beats allow."""
        one = self.decided
        if one is None:
            return ALLOW
        people = one.for_people or one.why
        if one.then is Then.DENY:
            return Deny(one.code, one.reason, people)
        return Ask(one.code, one.reason, people)


class Rules(Policy):
    """Judge calls by what they would do."""

    def __init__(
        self, document: Document, *, workspace: str, home: str, disk: Disk | None = None
    ) -> None:
        """Make rules ready.

        Args:
            document: The rules; their examples are not run here, see `load_rules`.
            workspace: The absolute folder that relative paths mean.
            home: The folder that `~` means where calls run.
            disk: Follows links, for a policy that judges where calls run; None goes by names.
        """
        self.document = document
        self._workspace, self._home, self._disk = workspace, home, disk
        made = [Compiled(rule, workspace, home) for rule in document.rules]
        self._against = tuple(one for one in made if one.rule.then is not Then.ALLOW)
        self._for = tuple(one for one in made if one.rule.then is Then.ALLOW)
        self._paths = any(one.looks_at_paths for one in made)
        self._sieve = Sieve(self._against, workspace, home)

    async def judge(self, call: Call) -> Verdict:
        """Judge one call."""
        judged = self.look(call)
        return judged.verdict if judged.findings else ALLOW

    def look(self, call: Call) -> Judgement:
        """What a call would do, and all that the rules say about it."""
        effects = read_call(call, self._workspace, self._home)
        routes = routes_of(effects.places, self._disk) if self._paths else ()
        seen = Seen(call, effects, routes)
        findings = self._hits(seen)
        if seen.shell:
            self._command(seen, findings)
        elif self.document.other_tools is not Then.ALLOW and not any(
            one.about(call) and one.allows_call(seen) for one in self._for
        ):
            findings.append(self._default(self.document.other_tools, f"the tool {call.name}"))
        return Judgement(effects, tuple(findings))

    def hits(self, call: Call, name: str) -> Hit:
        """Whether one rule that denies or asks hits a call."""
        effects = read_call(call, self._workspace, self._home)
        seen = Seen(call, effects, routes_of(effects.places, self._disk))
        return next(one.hit(seen)[0] for one in self._against if one.rule.name == name)

    def _hits(self, seen: Seen) -> list[Finding]:
        findings: list[Finding] = []
        for one in self._sieve.held(seen):
            hit, by = one.hit(seen)
            if hit is Hit.NO:
                continue
            rule = one.rule
            then = rule.then if hit is Hit.YES else _weaker(rule.then, self.document.unreadable)
            if hit is Hit.YES:
                code, why, people = f"rule:{rule.name}", f"{rule.name}: {by}", rule.for_people
                reason = rule.reason or f"the rule {rule.name!r} forbids it: {by}. {INSTEAD}"
            else:
                code, why = f"maybe:{rule.name}", f"{rule.name}: perhaps {by}"
                people = f"it may be what {rule.name} is about: {by}"
                reason = f"the rule {rule.name!r} may be about {by}. Say it in a plainer way."
            findings.append(Finding(then, code, why, reason, people))
        return findings

    def _command(self, seen: Seen, findings: list[Finding]) -> None:
        document, effects = self.document, seen.effects
        if effects.unreadable:
            why = effects.unreadable
            reason = f"the command cannot be judged: {why}. Write it in a plainer way."
            findings.append(Finding(document.unreadable, "unreadable", why, reason))
        rules = [one for one in self._for if one.about(seen.call)]
        covered = {
            one.name
            for one in effects.programs
            if rules and any(rule.allows_program(one, seen) for rule in rules)
        }
        if document.code is not Then.ALLOW:
            for name in effects.code:
                if name not in covered:
                    why = f"{name} is given code that is not looked into"
                    reason = f"{why}. Use plain commands, or a tool for files."
                    findings.append(Finding(document.code, "code", why, reason))
        for setting in effects.settings if document.environment is not Then.ALLOW else ():
            if setting.dangerous and not any(one.allows_setting(setting) for one in rules):
                why = f"it sets {setting.name}, by which programs load or run something else"
                findings.append(Finding(document.environment, "environment", why, f"{why}."))
        if document.default is not Then.ALLOW:
            self._allowlist(seen, rules, findings)

    def _allowlist(self, seen: Seen, rules: list[Compiled], findings: list[Finding]) -> None:
        then = self.document.default
        findings += [
            self._default(then, f"the program {one.name or '?'}")
            for one in seen.effects.programs
            if not any(rule.allows_program(one, seen) for rule in rules)
        ]
        alone = [one for one in seen.effects.places if not one.by]
        alone_hosts = [one for one in seen.effects.hosts if not one.by]
        if (alone or alone_hosts) and not any(one.allows_rest(seen) for one in rules):
            findings.append(self._default(then, "a redirection"))

    def _default(self, then: Then, what: str) -> Finding:
        why = f"no rule allows {what}"
        return Finding(then, "default", why, f"{why}. {INSTEAD}")


def _weaker(one: Then, two: Then) -> Then:
    return one if one.weight <= two.weight else two
