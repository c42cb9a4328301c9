"""The cost of a verdict, for each policy of a governed run and for all; ends with one JSON object.

The chain is the one that `wiring/governance.py` builds, followed by the budget. Each figure is the
CPU time of one verdict: the median of a round, and the lowest of several rounds, because other load
can only increase it. `fresh` judges a command that is not in the parser's cache; `again` one that
is. `floor` is a chain of as many policies that allow immediately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from evoclaw.core.chain import Chain
from evoclaw.core.history import History
from evoclaw.core.labels import Label
from evoclaw.core.messages import (
    Finish,
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    user,
)
from evoclaw.core.ports import ALLOW, Policy, Verdict
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.flow.policy import Flow
from evoclaw.shell.commands import clear_command_cache
from evoclaw.tools.catalogue import load
from evoclaw.wiring.budget import price_for
from evoclaw.wiring.governance import Governance, open_governance

ROUNDS, TIMES = 16, 60
ENOUGH = 500
"""Verdicts of the floor that are timed together: one is too fast for the clock."""
SETTINGS = "[rates]\nper_minute = 100000\nburst = 100000\n"
"""High rate limits, so that they do not affect the measurement."""
MODEL = "openai/gpt-4o"
TOOLS = {bound.name: bound.tool for bound in load(("read", "write", "bash", "webfetch"))}
EDGE_CALL = Tool(
    "edge_call",
    "Call an edge agent.",
    {"type": "object", "properties": {"agent_id": {"type": "string"}}},
    permissions=frozenset({"device"}),
    resources=("agent_id",),
    acts=True,
    sends=True,
)
LONG = "cd src && grep -rn 'def ' evoclaw/core | sort > ../out.txt 2>&1 || echo none"
PAGE = "https://example.org/guide/loop.html"
TEXT = "\n".join(f"line {number}: the loop asks, judges and runs." for number in range(40))
CALLS: dict[str, tuple[Tool, dict[str, object]]] = {
    "read": (TOOLS["read"], {"path": "src/evoclaw/core/loop.py"}),
    "write": (TOOLS["write"], {"path": "notes/loop.md", "content": TEXT}),
    "git_status": (TOOLS["bash"], {"command": "git status --short"}),
    "pipe": (TOOLS["bash"], {"command": "cat README.md | head -50"}),
    "four_programs": (TOOLS["bash"], {"command": LONG}),
    "webfetch": (TOOLS["webfetch"], {"url": PAGE}),
    "edge_call": (
        EDGE_CALL,
        {"agent_id": "kitchen", "action": "light", "params": {"on": True, "level": 3}},
    ),
}
ASKED = (
    f"Please fetch {PAGE}, run git status --short with bash, write notes/loop.md about the loop "
    "and turn on the light in the kitchen at level 3."
)


def messages(tool: str, label: Label) -> Iterator[Message]:
    """A conversation: the user's message, then replies and results in turn."""
    yield SystemMessage("You are a careful agent. Work in the workspace and say what you did.")
    yield user(ASKED)
    for turn in count():
        asked = ToolCall(f"c{turn}", tool, json.dumps({"path": f"docs/{turn}.md"}))
        yield Reply(f"I look at page {turn}.", (asked,), Finish.CALLS)
        text = f"Page {turn} of 2024-05-17.\n" + TEXT.replace("line", f"{turn}.")
        yield ToolResult(asked.id, tool, (TextBlock(text, label),))


def history(size: int, *, untrusted: bool) -> History:
    """The first messages of a conversation."""
    tool = TOOLS["webfetch" if untrusted else "read"]
    every = messages(tool.name, tool.label)
    return History(next(every) for _ in range(size))


class Subject:
    """One kind of call in one kind of conversation, and the policies that judge it."""

    def __init__(self, governance: Governance, kind: str, seen: History) -> None:
        settings, terms = governance.settings.budget, BudgetOptions(price=price_for(MODEL))
        self._budget = RunBudget(governance.ledger, f"bench-{kind}-{id(seen)}", settings, terms)
        self._tool, self._arguments = CALLS[kind]
        self._context, self._ids = Context(seen.label, seen), count()
        self.verdict: Verdict = ALLOW
        each = policies(governance, self._budget)
        self._judged: dict[str, tuple[Policy, Callable[[], object]]] = {
            "fresh": (chain := Chain(tuple(each.values())), clear_command_cache),
            "again": (chain, lambda: None),
            **{name: (policy, clear_command_cache) for name, policy in each.items()},
        }
        self.took = dict.fromkeys(self._judged, float("inf"))
        """The lowest median so far, in µs."""

    async def round(self) -> None:
        """Measure one round of every policy."""
        for name, (policy, before) in self._judged.items():
            took: list[int] = []
            for _ in range(TIMES):
                call = self._call()
                before()
                began = time.process_time_ns()
                verdict = await policy.judge(call)
                took.append(time.process_time_ns() - began)
                # Release the reservation, so that the next call finds the same budget.
                self._budget.settle_call(call.ok(""))
                self.verdict = verdict if name == "fresh" else self.verdict
            self.took[name] = min(self.took[name], round(median(took) / 1000, 1))

    def _call(self) -> Call:
        """A new call that differs only in its id."""
        id = f"bench.{next(self._ids)}.1.1"
        return Call(id, self._tool, dict(self._arguments), id, 10.0, context=self._context)


def policies(governance: Governance, budget: RunBudget) -> dict[str, Policy]:
    """Every policy of a run by its name, in order."""
    tools = (*TOOLS.values(), EDGE_CALL)
    rules = governance.rules(Level.FULL, frozenset({"*"}), Path.cwd(), lambda: tools)
    return {_name(policy): policy for policy in (*rules, budget)}


class AllowImmediately(Policy):
    """Allows every call without a check."""

    async def judge(self, call: Call) -> Verdict:
        return ALLOW


async def floor(governance: Governance) -> float:
    """The cost of a chain of as many policies that allow immediately."""
    settings, terms = governance.settings.budget, BudgetOptions(price=price_for(MODEL))
    budget = RunBudget(governance.ledger, "bench-floor", settings, terms)
    chain = Chain(tuple(AllowImmediately() for _ in policies(governance, budget)))
    call = Call("bench", *CALLS["read"], "bench.1.1.1", 10.0, context=Context())
    took: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(ENOUGH):
            await chain.judge(call)
        took.append((time.process_time_ns() - began) / ENOUGH)
    return round(min(took) / 1000, 2)


def _name(policy: Policy) -> str:
    inner = getattr(policy, "rule", policy)
    return type(inner).__name__


@asynccontextmanager
async def governed() -> AsyncGenerator[Governance]:
    """The governance of a machine with default settings."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "evoclaw.toml").write_text(SETTINGS)
        async with open_governance({"EVOCLAW_HOME": folder, "HOME": str(Path.home())}) as found:
            yield found


async def indexing() -> float:
    """The cost of `Flow` when a new turn must be indexed: a reply, and a result of 2 KB."""
    every = messages("read", TOOLS["read"].label)
    seen = history(50, untrusted=True)
    for _ in range(len(seen)):
        next(every)
    flow, took = Flow(tools=lambda: tuple(TOOLS.values())), list[int]()
    for number in range(ROUNDS * TIMES // 4):
        seen.append(next(every))
        seen.append(next(every))
        context, id = Context(seen.label, seen), f"bench.{number}.1.1"
        call = Call(id, *CALLS["git_status"], id, 10.0, context=context)
        began = time.process_time_ns()
        await flow.judge(call)
        took.append(time.process_time_ns() - began)
    return round(median(took[1:]) / 1000, 1)


async def main(rounds: int) -> None:
    """Measure, print, and end with one JSON object."""
    results: dict[str, object] = {"unit": "µs of processor time"}
    trusted, untrusted = (history(50, untrusted=untrusted) for untrusted in (False, True))
    async with governed() as governance:
        subjects = {
            f"{kind}/{name}": Subject(governance, kind, seen)
            for name, seen in (("trusted", trusted), ("untrusted", untrusted))
            for kind in CALLS
        }
        # Alternate, so that a moment of high load affects all of them.
        for _ in range(rounds):
            for subject in subjects.values():
                await subject.round()
        results["floor"] = await floor(governance)
    for name, subject in subjects.items():
        verdict = getattr(subject.verdict, "code", "") or "allow"
        results[name] = {"verdict": verdict, **subject.took}
        print(f"{name} ({verdict}):", "  ".join(f"{k} {v}" for k, v in subject.took.items()))
    results["flow_with_a_turn_to_index"] = await indexing()
    print(json.dumps(results, ensure_ascii=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asyncio.run(main(parser.parse_args().rounds))
