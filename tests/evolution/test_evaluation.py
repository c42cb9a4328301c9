"""An evaluation: real runs, checked, with intervals and coverage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import StopReason
from evoclaw.core.messages import Message, Reply, user
from evoclaw.core.ports import Ports
from evoclaw.core.run import watch
from evoclaw.core.state import new_run
from evoclaw.core.version import VERSION
from evoclaw.evolution.cases import Case, CaseFile, Split, case_from_run, read_case
from evoclaw.evolution.evaluation import (
    Attempt,
    CaseRun,
    evaluate,
    evaluate_both,
    lineage_scores,
    summed_up,
    wilson,
)
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.recordings import encode_record
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps


def case_of(text: dict[str, Any], path: Path = Path("x.toml")) -> CaseFile:
    return CaseFile(path.stem, path, msgspec.convert({"message": "Go.", **text}, Case))


WEATHER = {
    "tools": [{"name": "weather", "description": "The weather."}],
    "results": [{"tool": "weather", "arguments": {"city": "Rome"}, "text": "sunny"}],
    "checks": [{"kind": "answer", "contains": "sunny"}],
}


@asynccontextmanager
async def running(case: CaseFile, *replies: Reply) -> AsyncGenerator[CaseRun]:
    recorded = RecordedResults(case)
    provider = Scripted(*replies)
    ports = Ports(provider, recorded, Autonomy(Level.FULL))
    state = new_run([user(case.case.message)])
    yield CaseRun(state, ports, LoopSettings(), FakeOps(), recorded)


async def test_calls_are_answered_from_the_case_and_coverage_is_counted() -> None:
    case = case_of(WEATHER)
    replies = [
        calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})),
        says("It is sunny."),
    ]
    done = await evaluate([case], lambda c, _: running(c, *replies), repeat=2)
    assert (done.total.passed, done.total.attempts) == (2, 2)
    assert (done.coverage, done.attempts[0].coverage) == (0.5, 0.5)
    assert list(done.cases) == ["x"] and list(done.splits) == ["train"]


async def test_a_run_that_fails_its_checks_or_does_not_complete_says_why() -> None:
    done = await evaluate([case_of(WEATHER)], lambda c, _: running(c, says("No idea.")))
    (attempt,) = done.attempts
    assert attempt.problems == ("the answer does not contain 'sunny'",)
    assert (attempt.passed, attempt.coverage, done.coverage) == (False, None, None)
    assert (attempt.recorded, done.recorded) == (True, 1), "there was a record, and no call"
    again = calls(("weather", {"city": "Rome"}))
    done = await evaluate([case_of(WEATHER)], lambda c, _: running(c, again, again, again))
    assert done.attempts[0].problems[0] == "the run ended with loop_detected"


async def test_a_run_that_cannot_be_prepared_ends_the_evaluation_with_its_error() -> None:
    def broken(case: CaseFile, _: Path) -> Any:
        raise ConfigError("no sandbox here")

    with pytest.raises(ConfigError, match="no sandbox here"):
        await evaluate([case_of(WEATHER)], broken, repeat=3)


async def test_an_error_of_one_genome_ends_the_runs_of_the_other_before_it_is_raised() -> None:
    started = asyncio.Event()
    ended: list[str] = []

    @asynccontextmanager
    async def endless(case: CaseFile, _: Path) -> AsyncGenerator[CaseRun]:
        started.set()
        try:
            await asyncio.Event().wait()
            raise AssertionError("the event is never set")
            yield
        finally:
            ended.append(case.name)

    @asynccontextmanager
    async def broken(case: CaseFile, _: Path) -> AsyncGenerator[CaseRun]:
        await started.wait()
        raise ConfigError("the server stopped")
        yield

    async with asyncio.timeout(10):
        with pytest.raises(ConfigError, match="the server stopped"):
            await evaluate_both([case_of(WEATHER)], endless, broken, repeat=1, parallel=2)
    assert ended == ["x"]


async def test_each_run_gets_a_copy_of_the_start_folder(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "a.txt").write_text("hello")
    case = case_of(
        {
            "workspace": "start",
            "checks": [{"kind": "file", "path": "a.txt", "equals": "hello"}],
        },
        tmp_path / "x.toml",
    )
    seen: list[Path] = []

    @asynccontextmanager
    async def writes(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        assert (workspace / "a.txt").read_text() == "hello"
        seen.append(workspace)
        async with running(case, says("done")) as run:
            yield run
        (workspace / "a.txt").write_text("changed")

    done = await evaluate([case], writes, repeat=3, parallel=2)
    assert done.total.passed == 3
    assert len(set(seen)) == 3 and not any(path.exists() for path in seen)


async def test_a_recorded_run_becomes_a_case_that_it_passes(tmp_path: Path) -> None:
    @tool("file_read", effect="read", resources=())
    async def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    ports = Ports(
        Scripted(calls(("look", {"what": "a"})), says("Seen.")),
        LocalExecutor([look]),
        Autonomy(Level.FULL),
    )
    records = [record async for record in watch("Look at a.", ports)]
    (tmp_path / "seen.jsonl").write_bytes(b"".join(map(encode_record, records)))
    (tmp_path / "seen.toml").write_text(case_from_run(records, "seen", "bob", Split.VALIDATION))
    case = read_case(tmp_path / "seen.toml")
    assert (case.case.message, case.case.agent) == ("Look at a.", "bob")
    replies = [calls(("look", {"what": "a"})), says("Seen.")]
    done = await evaluate([case], lambda c, _: running(c, *replies))
    assert (done.total.passed, done.coverage) == (1, 1.0)
    other = [calls(("look", {"what": "b"})), says("Seen.")]
    done = await evaluate([case], lambda c, _: running(c, *other))
    assert (done.total.passed, done.coverage) == (0, 0.0), "what was not recorded has no result"


async def test_a_run_that_continues_a_conversation_does_not_become_a_case() -> None:
    async def text_of(*before: Message) -> str:
        replies = calls(("weather", {"city": "Rome"})), says("Sunny.")
        ports = Ports(Scripted(*replies), RecordedResults(case_of(WEATHER)), Autonomy(Level.FULL))
        records = [record async for record in watch([*before, user("And in Rome?")], ports)]
        return case_from_run(records, "kept", "bob", Split.TRAIN)

    memory = user("From memory: she lives in Rome.")
    assert 'message = "And in Rome?"' in await text_of(memory), "a note of the memory is no turn"
    with pytest.raises(ConfigError, match="continues a conversation.* in a new session"):
        await text_of(user("Is it sunny in Oslo?"), says("No."))


async def test_the_scores_say_with_what_and_where_the_runs_ran() -> None:
    done = await evaluate([case_of(WEATHER)], lambda c, _: running(c, says("Sunny.")), repeat=2)
    scores = lineage_scores(done)
    assert (scores["recorded"], scores["coverage"]) == (2, None)
    assert (scores["model"], scores["host"]) == ("scripted/model", gethostname())
    assert scores["evoclaw_version"] == VERSION


@pytest.mark.parametrize(
    ("passed", "attempts", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_the_interval_is_wilsons(passed: int, attempts: int, low: float, high: float) -> None:
    rate = wilson(passed, attempts)
    assert (round(rate.low, 4), round(rate.high, 4)) == (low, high)
    assert wilson(0, 0).high == 1.0


def test_an_unknown_price_makes_the_cost_unknown() -> None:
    known = Attempt(
        case="a", split=Split.TRAIN, passed=True, problems=(), stop=StopReason.COMPLETED, turns=1,
        calls=0, cost=0.5, coverage=None,
    )  # fmt: skip
    assert summed_up([known, known]).cost == 1.0
    assert summed_up([known, replace(known, cost=None)]).cost is None
