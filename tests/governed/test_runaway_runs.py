"""Faults 49, 50, 54 and 57 through the command: what runs away is stopped, and it is said why."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.command_line import reply, shell
from tests.support.governed_machine import (
    audit_records,
    events,
    settings,
    turns,
    write_example_files,
)
from tests.support.llm_servers import Answer, Peer


def restless() -> Answer:
    """A model that never ends and never repeats itself."""
    numbers = count(1)

    async def answer(peer: Peer) -> None:
        await reply("", ("glob", {"pattern": f"*{next(numbers)}"}))(peer)

    return answer


@pytest.mark.parametrize("session", [(), ("--session", "s")])
@pytest.mark.parametrize(("budget", "word"), [("turns = 4", "turn"), ("tokens = 100", "token")])
async def test_fault_49_an_endless_run_is_stopped_by_its_budget(
    tmp_path: Path, session: tuple[str, ...], budget: str, word: str
) -> None:
    async with shell(tmp_path, restless()) as here:
        write_example_files(here)
        settings(here, f"[budget]\n{budget}\n")
        ran = await here.type("run", "--json", "--turns", "50", *session, "go")
        made = [
            one for one in audit_records(here.home / ".evoclaw") if one.get("verdict") == "allow"
        ]
    (end,) = events(ran.out, "run_finished")
    assert (end["stop"], ran.code) == ("budget_exceeded", exits.STOPPED), end
    assert word in end["reason"] and word in end["text"], end
    assert len(made) <= 4


async def test_fault_49_without_calls_left_every_call_is_denied(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, restless()) as here:
        settings(here, "[budget]\ncalls = 3\n")
        ran = await here.type("run", "--json", "--turns", "8", "go")
        rows = [(one["verdict"], one["code"]) for one in audit_records(here.home / ".evoclaw")]
    assert rows == [("allow", "")] * 3 + [("deny", "budget_calls")] * 5
    assert ran.code == exits.STOPPED


async def test_fault_49_repeating_the_same_call_ends_the_run(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("", ("read", {"path": "a.txt"}))) as here:
        write_example_files(here)
        ran = await here.type("run", "--json", "--turns", "50", "go")
    (end,) = events(ran.out, "run_finished")
    assert (end["stop"], end["calls"], ran.code) == ("loop_detected", 2, exits.STOPPED)


async def test_fault_49_repeating_the_same_denied_call_ends_the_run(tmp_path: Path) -> None:
    begging = reply("Please.", ("bash", {"command": "cat ~/.ssh/id_ed25519"}))
    async with shell(tmp_path, begging) as here:
        write_example_files(here)
        ran = await here.type("run", "--json", "--yes", "--turns", "50", "go")
    (end,) = events(ran.out, "run_finished")
    assert (end["stop"], end.get("calls", 0)) == ("loop_detected", 0)


async def test_fault_50_of_fifty_calls_in_one_reply_a_budget_of_one_runs_one(
    tmp_path: Path,
) -> None:
    fifty = [("write", {"path": f"f{n}", "content": "x"}) for n in range(50)]
    async with shell(tmp_path, reply("", *fifty), reply("done")) as here:
        settings(here, "[budget]\ncalls = 1\n")
        ran = await here.type("run", "--json", "--yes", "go")
        made = list(here.workspace.iterdir())
    answered = [one["result"]["call_id"] for one in events(ran.out, "call_finished")]
    assert len(made) == 1
    assert len(answered) == len(set(answered)) == 50


def depth(above: dict[str, str], session: str) -> int:
    """How many sessions one is a part of."""
    return 0 if not above[session] else 1 + depth(above, above[session])


async def test_fault_57_endless_delegation_is_stopped_at_depth_three(tmp_path: Path) -> None:
    on = reply("", ("task", {"prompt": "do it", "description": "it"}))
    async with shell(tmp_path, on) as here:
        settings(here, "[budget]\ncalls = 12\n")
        ran = await here.type("run", "--yes", "--json", "--session", "s", "go")
        home = here.home / ".evoclaw"
        with closing(sqlite3.connect(home / "evoclaw.db")) as database:
            above = dict(database.execute("SELECT id, parent FROM sessions").fetchall())
        made = [one for one in audit_records(home) if one.get("verdict") == "allow"]
    (end,) = events(ran.out, "run_finished")
    assert max(depth(above, one) for one in above) == 3
    assert len(made) == len(above) - 1 == 12, "the budget is shared, not copied"
    assert end["stop"] != "completed"


async def test_fault_49_the_model_is_notified_of_the_remaining_budget(tmp_path: Path) -> None:
    calls = [("read", {"path": "a.txt", "offset": n}) for n in range(1, 10)]
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        settings(here, "[budget]\ncalls = 12\n")
        ran = await here.type("run", "--json", "go")
    told = [json.dumps(one) for one in events(ran.out, "call_finished")]
    assert any("left" in one and "12" in one for one in told), told[-1]
