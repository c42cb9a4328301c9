"""Rules prove themselves: each example is judged when the rules are loaded."""

from __future__ import annotations

from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Allow
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.rules.conditions import Hit
from evoclaw.governance.rules.disk import Disk
from evoclaw.governance.rules.document import (
    CallExample,
    Document,
    Rule,
    Then,
    read_rules,
    shipped_rules,
)
from evoclaw.governance.rules.policy import Judgement, Rules
from evoclaw.shell.effects import names

SOMEBODY = "/home/somebody"
SOMEWHERE = f"{SOMEBODY}/work"
"""For the examples of the shipped rules: they hold whatever folder one works in."""
_READING = names(
    """read glob grep image webfetch websearch codesearch git_status git_diff git_log todoread
    skill sessions_list sessions_history session_status agents_list"""
)


def load_rules(path: Path | None, *, workspace: str, home: str, disk: Disk | None = None) -> Rules:
    """Read rules, run their examples, and make them ready; None takes those that are shipped.

    The shipped ones were proved by our own tests: a device that never judges a command need not
    load a parser for them.
    """
    if path is None:
        document = shipped_rules()
    else:
        document = read_rules(path)
        check_examples(document, workspace=workspace, home=home)
    return Rules(document, workspace=workspace, home=home, disk=disk)


def check_examples(document: Document, *, workspace: str, home: str) -> int:
    """Judge every example; returns how many there are, or raises `ConfigError` for the first."""
    # By names alone: whether an example holds must not depend on the files of the day.
    rules = Rules(document, workspace=workspace, home=home)
    count = 0
    for rule in document.rules:
        for example in rule.allows:
            _left_alone(rules, rule, example)
        for example in rule.denies:
            _caught(rules, rule, example)
        count += len(rule.allows) + len(rule.denies)
    return count


def example_call(example: str | CallExample) -> Call:
    """The call that an example means."""
    if isinstance(example, str):
        example = CallExample("bash", {"command": example})
    effect = Effect.READ if example.tool in _READING else Effect.WRITE
    tool = Tool(example.tool, "", {}, effect=effect)
    return Call("example", tool, example.arguments, "example.1.1.1", 1.0)


def _left_alone(rules: Rules, rule: Rule, example: str | CallExample) -> None:
    call = example_call(example)
    judged = rules.look(call)
    if rule.then is Then.ALLOW:
        if not isinstance(judged.verdict, Allow):
            _refuse(rule, "allows", example, judged)
    elif rules.hits(call, rule.name) is not Hit.NO:
        _refuse(rule, "allows", example, judged)


def _caught(rules: Rules, rule: Rule, example: str | CallExample) -> None:
    call = example_call(example)
    judged = rules.look(call)
    if rule.then is Then.ALLOW:
        fine = not isinstance(judged.verdict, Allow)
    else:
        # An example that is only guarded against by being unreadable proves nothing.
        fine = rules.hits(call, rule.name) is Hit.YES
    if not fine:
        _refuse(rule, "denies", example, judged)


def _refuse(rule: Rule, key: str, example: str | CallExample, judged: Judgement) -> None:
    shown = example if isinstance(example, str) else f"{example.tool} {example.arguments}"
    decided = judged.decided
    came = "it would be allowed"
    if decided is not None:
        came = f"it came out as {decided.then} by {decided.code} ({decided.why})"
    if key == "allows" and rule.then is not Then.ALLOW and not _mentions(judged, rule):
        came = "the rule hits it"
    raise ConfigError(
        f"rule {rule.name!r}: its example {shown!r} under `{key}` does not hold: {came}; "
        "change the rule or the example"
    )


def _mentions(judged: Judgement, rule: Rule) -> bool:
    return any(one.code == f"rule:{rule.name}" for one in judged.findings)
