"""The policy that judges calls by their effects, according to a rules file."""

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
    """`rule:NAME`, `maybe:NAME` if the match is not certain, `unreadable`, `code`, `environment`
    or `default`."""
    why: str
    """For people: the effect that matched."""
    reason: str
    """For the model."""
    for_people: str = ""


class Judgement(Struct, frozen=True):
    """The effects of a call, and all findings of the rules."""

    effects: Effects
    findings: tuple[Finding, ...]

    @property
    def decided(self) -> Finding | None:
        """The finding that decides: the first deny, else the first ask; None allows the call."""
        strongest: Finding | None = None
        for finding in self.findings:
            if finding.then is Then.DENY:
                return finding
            strongest = strongest or (finding if finding.then is Then.ASK else None)
        return strongest

    @property
    def verdict(self) -> Verdict:
        """Deny beats ask beats allow."""
        finding = self.decided
        if finding is None:
            return ALLOW
        people = finding.for_people or finding.why
        if finding.then is Then.DENY:
            return Deny(finding.code, finding.reason, people)
        return Ask(finding.code, finding.reason, people)


class Rules(Policy):
    """Judges calls by their effects, according to a rules file."""

    def __init__(
        self, document: Document, *, workspace: str, home: str, disk: Disk | None = None
    ) -> None:
        """Compile the rules.

        Args:
            document: The rules; `load_rules` also checks their examples.
            workspace: The absolute folder that relative paths refer to.
            home: The folder that `~` refers to where calls run.
            resolver: Follows links where calls run on this machine; None compares names only.
        """
        self.document = document
        self._workspace, self._home, self._disk = workspace, home, disk
        compiled = [Compiled(rule, workspace, home) for rule in document.rules]
        self._against = tuple(rule for rule in compiled if rule.rule.then is not Then.ALLOW)
        self._for = tuple(rule for rule in compiled if rule.rule.then is Then.ALLOW)
        self._paths = any(rule.looks_at_paths for rule in compiled)
        self._sieve = Sieve(self._against, workspace, home)

    async def judge(self, call: Call) -> Verdict:
        """Judge a call."""
        judged = self.look(call)
        return judged.verdict if judged.findings else ALLOW

    def look(self, call: Call) -> Judgement:
        """The effects of a call, and all findings of the rules."""
        effects = read_call(call, self._workspace, self._home)
        routes = routes_of(effects.places, self._disk) if self._paths else ()
        seen = Seen(call, effects, routes)
        findings = self._hits(seen)
        if seen.shell:
            self._command(seen, findings)
        elif self.document.other_tools is not Then.ALLOW and not any(
            rule.about(call) and rule.allows_call(seen) for rule in self._for
        ):
            findings.append(self._default(self.document.other_tools, f"the tool {call.name}"))
        return Judgement(effects, tuple(findings))

    def hits(self, call: Call, name: str) -> Hit:
        """Whether the rule of this name, which denies or asks, matches a call."""
        effects = read_call(call, self._workspace, self._home)
        seen = Seen(call, effects, routes_of(effects.places, self._disk))
        return next(rule.hit(seen)[0] for rule in self._against if rule.rule.name == name)

    def _hits(self, seen: Seen) -> list[Finding]:
        findings: list[Finding] = []
        for compiled in self._sieve.held(seen):
            hit, by = compiled.hit(seen)
            if hit is Hit.NO:
                continue
            rule = compiled.rule
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
        rules = [rule for rule in self._for if rule.about(seen.call)]
        covered = {
            program.name
            for program in effects.programs
            if rules and any(rule.allows_program(program, seen) for rule in rules)
        }
        if document.code is not Then.ALLOW:
            for name in effects.code:
                if name not in covered:
                    why = f"{name} is given code that is not looked into"
                    reason = f"{why}. Use plain commands, or a tool for files."
                    findings.append(Finding(document.code, "code", why, reason))
        for setting in effects.settings if document.environment is not Then.ALLOW else ():
            if setting.dangerous and not any(rule.allows_setting(setting) for rule in rules):
                why = f"it sets {setting.name}, by which programs load or run something else"
                findings.append(Finding(document.environment, "environment", why, f"{why}."))
        if document.default is not Then.ALLOW:
            self._allowlist(seen, rules, findings)

    def _allowlist(self, seen: Seen, rules: list[Compiled], findings: list[Finding]) -> None:
        then = self.document.default
        findings += [
            self._default(then, f"the program {program.name or '?'}")
            for program in seen.effects.programs
            if not any(rule.allows_program(program, seen) for rule in rules)
        ]
        paths = [path for path in seen.effects.places if not path.by]
        hosts = [host for host in seen.effects.hosts if not host.by]
        if (paths or hosts) and not any(rule.allows_rest(seen) for rule in rules):
            findings.append(self._default(then, "a redirection"))

    def _default(self, then: Then, what: str) -> Finding:
        why = f"no rule allows {what}"
        return Finding(then, "default", why, f"{why}. {INSTEAD}")


def _weaker(first: Then, second: Then) -> Then:
    return first if first.weight <= second.weight else second
