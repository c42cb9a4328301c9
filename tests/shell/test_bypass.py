"""The bypass fuzzer: what the rules let pass is really run, and nothing they deny may happen.

`EVOCLAW_FUZZ=10000` says how many examples each rule gets; the quick run gives a few hundred. The
long run is `python -m tests.shell.fuzz`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evoclaw.core.ports import Allow
from evoclaw.core.tools import Call
from evoclaw.governance.rules.document import CallExample, parse_rules
from evoclaw.governance.rules.examples import example_call
from evoclaw.governance.rules.path_resolver import LocalPathResolver
from evoclaw.governance.rules.policy import RulePolicy
from tests.shell import attacks
from tests.shell.fuzz import FUZZED_TESTS
from tests.shell.sandbox import FuzzSandbox, why_not
from tests.support.properties import examples

FUZZ = int(os.environ.get("EVOCLAW_FUZZ", "0"))
EXAMPLES = FUZZ or examples(200)
RULES = {
    "program": 'programs = ["marker"]\ndenies = ["marker"]',
    "write": 'paths = ["forbidden"]\naccess = "write"\ndenies = ["> forbidden"]',
    "read": 'paths = ["secret"]\naccess = "read"\ndenies = ["cat secret"]',
    "domain": 'domains = ["localhost", "ip6-localhost", "127.0.0.0/8", "0.0.0.0/8", "::1"]\n'
    'denies = ["curl localhost"]',
}
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
MARKS = {"program": "ran", "write": "forbidden", "read": "secret", "domain": "connected"}

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Attempts:
    """Tries to get around one rule, and counts."""

    def __init__(self, sandbox: FuzzSandbox, kind: str) -> None:
        self.sandbox, self.kind = sandbox, kind
        text = f'[[rules]]\nname = "{kind}"\nthen = "deny"\n{RULES[kind]}\n'
        self.workspace = str(sandbox.workspace)
        self.rules = RulePolicy(
            parse_rules(text, kind),
            workspace=self.workspace,
            home=self.workspace,
            resolver=LocalPathResolver(),
        )
        self.examples = self.ran = 0
        self.escapes: list[str] = []

    def allows(self, call: Call) -> bool:
        """Whether the rules let it pass."""
        return isinstance(self.rules.evaluate(call).verdict, Allow)

    def command(self, command: str, *, judged: bool = True) -> bool:
        """Try a command; True if it got through."""
        self.examples += 1
        if judged and not self.allows(example_call(command)):
            return False
        self.ran += 1
        return self._note(self.sandbox.run(command), command)

    def tool(self, name: str, key: str, argument: str) -> bool:
        """Try a call of another tool."""
        self.examples += 1
        if not self.allows(example_call(CallExample(name, {key: argument}))):
            return False
        self.ran += 1
        return self._note(self.sandbox.tool(name, argument), f"{name} {argument!r}")

    def _note(self, seen: dict[str, Any], what: str) -> bool:
        escaped = bool(seen[MARKS[self.kind]])
        if escaped:
            self.escapes.append(what)
        return escaped

    def compose(self, draw: Callable[..., Any]) -> str:
        """Make up a command."""
        match self.kind:
            case "program":
                command = attacks.program_attack(draw, str(self.sandbox.bin))
            case "write":
                command = attacks.write_attack(draw, self.workspace)
            case "read":
                command = attacks.read_attack(draw, self.workspace)
            case _:
                command = attacks.host_attack(draw, self.sandbox.port)
        for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2, 3)))):
            command = attacks.wrap(draw, command)
        return attacks.mutate(draw, command)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Generator[FuzzSandbox]:
    made = FuzzSandbox(tmp_path_factory.mktemp("sandbox"))
    yield made
    made.close()


TALLY: dict[str, dict[str, int]] = {}


@pytest.fixture(scope="module", autouse=True)
def tally() -> Generator[None]:
    yield
    if path := os.environ.get("EVOCLAW_FUZZ_TALLY"):
        Path(path).write_text(json.dumps(TALLY))


def fuzz(attempts: Attempts, attempt: Callable[[Callable[..., Any]], bool], count: int) -> None:
    """Try many times, and say what came of it."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=not FUZZ,
        suppress_health_check=CHECKS,
        report_multiple_bugs=False,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        escaped = attempt(data.draw)
        # The big run goes on, to find them all.
        assert FUZZ or not escaped, f"got through: {attempts.escapes[-1]!r}"

    run()
    told = TALLY.setdefault(attempts.kind, {"examples": 0, "run": 0, "escapes": 0})
    told["examples"] += attempts.examples
    told["run"] += attempts.ran
    told["escapes"] += len(attempts.escapes)
    assert not attempts.escapes, "\n".join(map(repr, attempts.escapes[:20]))


@pytest.mark.parametrize("kind", RULES)
def test_no_command_bypasses_a_deny_rule(sandbox: FuzzSandbox, kind: str) -> None:
    attempts = Attempts(sandbox, kind)
    fuzz(attempts, lambda draw: attempts.command(attempts.compose(draw)), EXAMPLES)


@pytest.mark.parametrize(("kind", "name"), [("read", "read"), ("write", "write")])
def test_no_tool_path_bypasses_a_deny_rule(sandbox: FuzzSandbox, kind: str, name: str) -> None:
    attempts = Attempts(sandbox, kind)
    target = {"read": "secret", "write": "forbidden"}[kind]

    def attempt(draw: Callable[..., Any]) -> bool:
        path = attacks.path_ways(draw, target, attempts.workspace)
        return attempts.tool(name, "path", attacks.mutate(draw, path))

    fuzz(attempts, attempt, EXAMPLES // 4)


def test_no_tool_url_bypasses_a_deny_rule(sandbox: FuzzSandbox) -> None:
    attempts = Attempts(sandbox, "domain")

    def attempt(draw: Callable[..., Any]) -> bool:
        return attempts.tool("webfetch", "url", attacks.url_attack(draw, sandbox.port))

    fuzz(attempts, attempt, EXAMPLES // 4)


def test_the_long_run_selects_the_tests_of_all_rules() -> None:
    assert sum(FUZZED_TESTS in name for name in globals()) == 3


@pytest.mark.parametrize("kind", RULES)
def test_the_fuzzed_commands_take_effect_without_rules(sandbox: FuzzSandbox, kind: str) -> None:
    attempts = Attempts(sandbox, kind)
    found: list[bool] = []

    @settings(max_examples=examples(25), deadline=None, database=None, derandomize=True,
              suppress_health_check=CHECKS)  # fmt: skip
    @given(st.data())
    def run(data: st.DataObject) -> None:
        found.append(attempts.command(attempts.compose(data.draw), judged=False))

    run()
    assert sum(found) >= 3, "the fuzzer's commands do nothing"
