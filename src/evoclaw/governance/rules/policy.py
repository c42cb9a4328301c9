"""The policy that judges calls by their effects, according to a rules file.

The effects of a call, as shown to people.
"""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.messages import JSON
from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.rules.compiled_rules import (
    CallEffects,
    CompiledRule,
    RuleIndex,
    resolve_paths,
)
from evoclaw.governance.rules.conditions import RuleMatch
from evoclaw.governance.rules.document import RuleAction, RuleDocument
from evoclaw.governance.rules.path_resolver import LocalPathResolver
from evoclaw.governance.rules.patterns import path_parts
from evoclaw.shell.calls import read_call
from evoclaw.shell.effects import Effects

ALTERNATIVE_HINT = "Do it in another way, or tell the user what you would do and why."


class RuleFinding(Struct, frozen=True, gc=False):
    """One reason for a verdict."""

    then: RuleAction
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
    findings: tuple[RuleFinding, ...]

    @property
    def decided(self) -> RuleFinding | None:
        """The finding that decides: the first deny, else the first ask; None allows the call."""
        strongest: RuleFinding | None = None
        for finding in self.findings:
            if finding.then is RuleAction.DENY:
                return finding
            strongest = strongest or (finding if finding.then is RuleAction.ASK else None)
        return strongest

    @property
    def verdict(self) -> Verdict:
        """Deny beats ask beats allow."""
        finding = self.decided
        if finding is None:
            return ALLOW
        people = finding.for_people or finding.why
        if finding.then is RuleAction.DENY:
            return Deny(finding.code, finding.reason, people)
        return Ask(finding.code, finding.reason, people)


class RulePolicy(Policy):
    """Judges calls by their effects, according to a rules file."""

    def __init__(
        self,
        document: RuleDocument,
        *,
        workspace: str,
        home: str,
        resolver: LocalPathResolver | None = None,
    ) -> None:
        """Compile the rules.

        Args:
            document: The rules; `load_rules` also checks their examples.
            workspace: The absolute folder that relative paths refer to.
            home: The folder that `~` refers to where calls run.
            resolver: Follows links where calls run on this machine; None compares names only.
        """
        self.document = document
        self._workspace, self._home, self._resolver = workspace, home, resolver
        compiled = [CompiledRule(rule, workspace, home) for rule in document.rules]
        self._restricting = tuple(
            rule for rule in compiled if rule.rule.then is not RuleAction.ALLOW
        )
        self._allowing = tuple(rule for rule in compiled if rule.rule.then is RuleAction.ALLOW)
        self._paths = any(rule.looks_at_paths for rule in compiled)
        self._index = RuleIndex(self._restricting, workspace, home)

    async def judge(self, call: Call) -> Verdict:
        """Judge a call."""
        judged = self.evaluate(call)
        return judged.verdict if judged.findings else ALLOW

    def evaluate(self, call: Call) -> Judgement:
        """The effects of a call, and all findings of the rules."""
        effects = read_call(call, self._workspace, self._home)
        routes = resolve_paths(effects.places, self._resolver) if self._paths else ()
        seen = CallEffects(call, effects, routes)
        findings = self._match_rules(seen)
        if seen.shell:
            self._judge_command(seen, findings)
        elif self.document.other_tools is not RuleAction.ALLOW and not any(
            rule.applies_to(call) and rule.allows_call(seen) for rule in self._allowing
        ):
            findings.append(
                self._default_finding(self.document.other_tools, f"the tool {call.name}")
            )
        return Judgement(effects, tuple(findings))

    def match(self, call: Call, name: str) -> RuleMatch:
        """Whether the rule of this name, which denies or asks, matches a call."""
        effects = read_call(call, self._workspace, self._home)
        seen = CallEffects(call, effects, resolve_paths(effects.places, self._resolver))
        return next(rule.match(seen)[0] for rule in self._restricting if rule.rule.name == name)

    def _match_rules(self, seen: CallEffects) -> list[RuleFinding]:
        findings: list[RuleFinding] = []
        for compiled in self._index.candidates(seen):
            hit, by = compiled.match(seen)
            if hit is RuleMatch.NO:
                continue
            rule = compiled.rule
            then = (
                rule.then if hit is RuleMatch.YES else _weaker(rule.then, self.document.unreadable)
            )
            if hit is RuleMatch.YES:
                code, why, people = f"rule:{rule.name}", f"{rule.name}: {by}", rule.for_people
                reason = (
                    rule.reason or f"the rule {rule.name!r} forbids it: {by}. {ALTERNATIVE_HINT}"
                )
                if rule.reason and compiled.looks_at_paths:
                    reason += f" The call could {by}."
            else:
                code, why = f"maybe:{rule.name}", f"{rule.name}: perhaps {by}"
                people = f"the rule {rule.name} may match: {by}"
                reason = f"the rule {rule.name!r} may match: {by}. Write a simpler command."
            findings.append(RuleFinding(then, code, why, reason, people))
        return findings

    def _judge_command(self, seen: CallEffects, findings: list[RuleFinding]) -> None:
        document, effects = self.document, seen.effects
        if effects.unreadable:
            why = effects.unreadable
            reason = f"the command cannot be analysed: {why}. Write a simpler command."
            findings.append(RuleFinding(document.unreadable, "unreadable", why, reason))
        rules = [rule for rule in self._allowing if rule.applies_to(seen.call)]
        covered = {
            program.name
            for program in effects.programs
            if rules and any(rule.allows_program(program, seen) for rule in rules)
        }
        if document.code is not RuleAction.ALLOW:
            for name in effects.code:
                if name not in covered:
                    why = f"{name} runs code that the rules cannot analyse"
                    reason = f"{why}. Use plain commands, or the file tools."
                    findings.append(RuleFinding(document.code, "code", why, reason))
        for setting in effects.settings if document.environment is not RuleAction.ALLOW else ():
            if setting.dangerous and not any(rule.allows_setting(setting) for rule in rules):
                why = f"it sets {setting.name}, which makes programs load or run other code"
                findings.append(RuleFinding(document.environment, "environment", why, f"{why}."))
        if document.default is not RuleAction.ALLOW:
            self._judge_allowlist(seen, rules, findings)

    def _judge_allowlist(
        self, seen: CallEffects, rules: list[CompiledRule], findings: list[RuleFinding]
    ) -> None:
        then = self.document.default
        findings += [
            self._default_finding(then, f"the program {program.name or '?'}")
            for program in seen.effects.programs
            if not any(rule.allows_program(program, seen) for rule in rules)
        ]
        paths = [path for path in seen.effects.places if not path.by]
        hosts = [host for host in seen.effects.hosts if not host.by]
        if (paths or hosts) and not any(rule.allows_rest(seen) for rule in rules):
            findings.append(self._default_finding(then, "a redirection"))

    def _default_finding(self, then: RuleAction, what: str) -> RuleFinding:
        why = f"no rule allows {what}"
        return RuleFinding(then, "default", why, f"{why}. {ALTERNATIVE_HINT}")


def _weaker(first: RuleAction, second: RuleAction) -> RuleAction:
    return first if first.weight <= second.weight else second


def describe_effects(effects: Effects) -> dict[str, JSON]:
    """The effects of a call by kind; only those that are certain."""

    def paths(access: str) -> list[JSON]:
        found = (path.pattern for path in effects.places if path.sure and path.access == access)
        split = (None if not pattern else path_parts(pattern) for pattern in found)
        shown = ("any path" if names is None else "/" + "/".join(names) for names in split)
        return [*dict.fromkeys(path.replace("\\", "") for path in shown)]

    return {
        "programs": [program.shown for program in effects.programs],
        "reads": paths("read"),
        "writes": paths("write"),
        "hosts": [*dict.fromkeys(host.name or "any host" for host in effects.hosts if host.sure)],
        "sets": [setting.name for setting in effects.settings],
        "code": [*effects.code],
        "unreadable": effects.unreadable,
    }
