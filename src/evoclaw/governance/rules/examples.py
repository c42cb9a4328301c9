"""Checks the examples of rules when the rules are loaded."""

from __future__ import annotations

from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Allow
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.rules.conditions import RuleMatch
from evoclaw.governance.rules.document import (
    CallExample,
    Rule,
    RuleAction,
    RuleDocument,
    read_rules,
    shipped_rules,
)
from evoclaw.governance.rules.path_resolver import LocalPathResolver
from evoclaw.governance.rules.policy import Judgement, RulePolicy
from evoclaw.shell.effects import names

EXAMPLE_HOME = "/home/somebody"
EXAMPLE_WORKSPACE = f"{EXAMPLE_HOME}/work"
"""The home and workspace with which the examples of the shipped rules are checked."""
_READING_TOOLS = names(
    """read glob grep image webfetch websearch codesearch git_status git_diff git_log todoread
    skill sessions_list sessions_history session_status agents_list"""
)


def load_rules(
    path: Path | None, *, workspace: str, home: str, disk: LocalPathResolver | None = None
) -> RulePolicy:
    """Load a rules file and check its examples; None loads the shipped rules.

    The examples of the shipped rules are checked by EvoClaw's tests, so that a device which never
    judges a command need not load the shell parser.
    """
    if path is None:
        document = shipped_rules()
    else:
        document = read_rules(path)
        check_examples(document, workspace=workspace, home=home)
    return RulePolicy(document, workspace=workspace, home=home, resolver=disk)


def check_examples(document: RuleDocument, *, workspace: str, home: str) -> int:
    """Check every example; returns their number, or raises `ConfigError` for the first failure."""
    # By names alone: the files that exist now must not decide whether an example holds.
    rules = RulePolicy(document, workspace=workspace, home=home)
    count = 0
    for rule in document.rules:
        for example in rule.allows:
            _check_allowed_example(rules, rule, example)
        for example in rule.denies:
            _check_denied_example(rules, rule, example)
        count += len(rule.allows) + len(rule.denies)
    return count


def example_call(example: str | CallExample) -> Call:
    """The call of an example; a text is a shell command."""
    if isinstance(example, str):
        example = CallExample("bash", {"command": example})
    effect = Effect.READ if example.tool in _READING_TOOLS else Effect.WRITE
    tool = Tool(example.tool, "", {}, effect=effect)
    return Call("example", tool, example.arguments, "example.1.1.1", 1.0)


def _check_allowed_example(rules: RulePolicy, rule: Rule, example: str | CallExample) -> None:
    call = example_call(example)
    judged = rules.evaluate(call)
    if rule.then is RuleAction.ALLOW:
        if not isinstance(judged.verdict, Allow):
            _refuse(rule, "allows", example, judged)
    elif rules.match(call, rule.name) is not RuleMatch.NO:
        _refuse(rule, "allows", example, judged)


def _check_denied_example(rules: RulePolicy, rule: Rule, example: str | CallExample) -> None:
    call = example_call(example)
    judged = rules.evaluate(call)
    if rule.then is RuleAction.ALLOW:
        fine = not isinstance(judged.verdict, Allow)
    else:
        # An example that is only refused because it cannot be analysed tests nothing.
        fine = rules.match(call, rule.name) is RuleMatch.YES
    if not fine:
        _refuse(rule, "denies", example, judged)


def _refuse(rule: Rule, key: str, example: str | CallExample, judged: Judgement) -> None:
    shown = example if isinstance(example, str) else f"{example.tool} {example.arguments}"
    decided = judged.decided
    outcome = "it would be allowed"
    if decided is not None:
        outcome = f"the verdict is {decided.then} by {decided.code} ({decided.why})"
    if key == "allows" and rule.then is not RuleAction.ALLOW and not _mentions(judged, rule):
        outcome = "the rule matches it"
    raise ConfigError(
        f"rule {rule.name!r}: its example {shown!r} under `{key}` fails: {outcome}; "
        "change the rule or the example"
    )


def _mentions(judged: Judgement, rule: Rule) -> bool:
    return any(finding.code == f"rule:{rule.name}" for finding in judged.findings)
