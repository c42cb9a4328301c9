"""All rules at once: leaving out what cannot hit changes no finding."""

from __future__ import annotations

import pytest

from evoclaw.governance.rules.conditions import RuleMatch
from evoclaw.governance.rules.document import CallExample, parse_rules, shipped_rules
from evoclaw.governance.rules.examples import example_call
from evoclaw.governance.rules.policy import RulePolicy

OWN = """
[[rules]]
name = "globs"
then = "ask"
programs = ["mk*", "[xy]z", "Plain"]
denies = ["mkdir a"]

[[rules]]
name = "one-host"
then = "deny"
programs = ["curl"]
domains = ["*.example.org"]
denies = ["curl a.example.org"]

[[rules]]
name = "its-argument"
then = "deny"
tools = ["write"]
where = { path = "*secret*" }
denies = [{ tool = "write", arguments = { path = "secret" } }]

[[rules]]
name = "a-variable"
then = "deny"
env = ["TOKEN*"]
denies = ["TOKEN=1 ls"]

[[rules]]
name = "everywhere"
then = "deny"
paths = ["**/*.key", "kept", "/"]
access = "write"
denies = ["touch a.key"]
"""
CALLS = (
    "ls",
    "mkdir a",
    "MKDIR a",
    "foo bin/mkfs.ext4 x",
    "foo XZ",
    "nice plain",
    "$x y",
    "foo $x",
    "curl https://a.example.org/ -o kept/x",
    "curl https://elsewhere.net",
    "wget a.example.org",
    "TOKEN_A=1 ls",
    "git push -f",
    "git push origin main",
    "git stash",
    "cat /etc/shadow ~/.ssh/x",
    "rm -rf /",
    "rm -r .",
    "touch a/b/c.KEY",
    "sudo reboot",
    "echo x > .git/hooks/pre-commit",
    CallExample("read", {"path": "/etc/shadow"}),
    CallExample("write", {"path": "my-secret"}),
    CallExample("write", {"path": "kept/a"}),
    CallExample("webfetch", {"url": "http://169.254.169.254/"}),
)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["shipped", "own"])
def test_the_rule_index_finds_every_matching_rule_in_order(
    call: str | CallExample, own: bool
) -> None:
    document = parse_rules(OWN, "own") if own else shipped_rules()
    rules, asked = RulePolicy(document, workspace="/w", home="/home/me"), example_call(call)
    expected = [
        one.name for one in document.rules if rules.match(asked, one.name) is not RuleMatch.NO
    ]
    codes = [one.code for one in rules.evaluate(asked).findings]
    assert [name for _, _, name in (one.partition(":") for one in codes) if name] == expected
