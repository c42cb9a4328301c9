"""How often calls may be made, by whom, and for how long one must wait."""

from __future__ import annotations

import asyncio
import fcntl
import re
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.core.ports import Allow, Deny
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.governance.rate_limits import ProcessRateWindows, RateLimit, RateLimits, RateSettings

ROOT = Path(__file__).parents[2]
ANN = Principal("local", "ann", "a")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(who: Principal = ANN, tool: str = "bash") -> Call:
    return Call("1", Tool(tool, "", {}), {}, "r", 1.0, context=Context(principal=who))


async def allowed(rates: RateLimits, count: int, who: Principal = ANN, tool: str = "bash") -> int:
    return sum([isinstance(await rates.judge(call(who, tool)), Allow) for _ in range(count)])


async def test_a_burst_is_limited_and_allowed_again_after_a_second() -> None:
    clock = Clock()
    rates = RateLimits(RateSettings(per_minute=0, burst=3), clock=clock)
    assert await allowed(rates, 10) == 3
    clock.now += 0.99
    assert await allowed(rates, 1) == 0
    clock.now += 0.02
    assert await allowed(rates, 10) == 3


async def test_the_per_minute_limit_is_a_sliding_window() -> None:
    clock = Clock()
    rates = RateLimits(RateSettings(per_minute=4, burst=0), clock=clock)
    for _ in range(4):
        assert await allowed(rates, 1) == 1
        clock.now += 10
    assert await allowed(rates, 1) == 0  # at 40: the first was at 0
    clock.now += 20.5
    assert await allowed(rates, 2) == 1  # the first has left the window, the second has not


async def test_a_denied_call_states_the_wait_time_and_is_not_counted() -> None:
    clock = Clock()
    rates = RateLimits(RateSettings(per_minute=1, burst=0), clock=clock)
    assert await allowed(rates, 1) == 1
    clock.now += 15
    for _ in range(5):
        verdict = await rates.judge(call())
        assert isinstance(verdict, Deny)
        assert verdict.code == "rate"
        assert "Try again in 45 s" in verdict.reason
    clock.now += 45.01
    assert await allowed(rates, 1) == 1


async def test_tenants_users_and_agents_are_counted_separately() -> None:
    rates = RateLimits(RateSettings(per_minute=0, burst=1), clock=Clock())
    for who in (ANN, Principal("other", "ann", "a"), Principal("local", "bob", "a"),
                Principal("local", "ann", "b")):  # fmt: skip
        assert await allowed(rates, 3, who) == 1


async def test_a_call_counts_for_the_limit_of_its_tool_and_the_general_limit() -> None:
    clock = Clock()
    settings = RateSettings(per_minute=0, burst=3, tools={"bash": RateLimit(per_minute=1)})
    rates = RateLimits(settings, clock=clock)
    assert await allowed(rates, 5, tool="bash") == 1
    verdict = await rates.judge(call())
    assert isinstance(verdict, Deny)
    assert "bash was called too often (1 a minute)" in verdict.reason
    assert await allowed(rates, 5, tool="read") == 2  # what bash was denied did not count
    clock.now += 60.1
    assert await allowed(rates, 5, tool="bash") == 1


async def test_without_a_limit_every_call_is_allowed_and_nothing_is_stored() -> None:
    rates = RateLimits(RateSettings(per_minute=0, burst=0), clock=Clock())
    assert await allowed(rates, 500) == 500
    assert isinstance(rates.windows, ProcessRateWindows)
    assert len(rates.windows) == 0


async def test_window_memory_is_bounded_and_many_principals_cannot_evade_a_limit() -> None:
    clock = Clock()
    rates = RateLimits(RateSettings(per_minute=1, burst=0, most=100), clock=clock)
    assert await allowed(rates, 1) == 1
    names = [Principal("local", f"user {number}") for number in range(1_000)]
    got = [await allowed(rates, 1, who) for who in names]
    assert sum(got) == 99
    assert isinstance(rates.windows, ProcessRateWindows)
    assert len(rates.windows) == 100
    assert await allowed(rates, 1) == 0
    clock.now += 61
    assert await allowed(rates, 1, names[-1]) == 1
    assert len(rates.windows) == 1


@given(
    st.lists(st.floats(0, 30), max_size=80),
    st.integers(1, 10),
    st.integers(1, 5),
)
async def test_no_window_ever_exceeds_its_limit(
    gaps: list[float], per_minute: int, burst: int
) -> None:
    clock = Clock()
    rates = RateLimits(RateSettings(per_minute=per_minute, burst=burst), clock=clock)
    passed: list[float] = []
    for gap in gaps:
        clock.now += gap
        verdict = await rates.judge(call())
        if isinstance(verdict, Allow):
            passed.append(clock.now)
            continue
        assert isinstance(verdict, Deny)
        found = re.search(r"Try again in ([\d.]+) s", verdict.reason)
        assert found is not None
        assert float(found[1]) <= 60
    for end in passed:
        assert sum(end - 60 < one <= end for one in passed) <= per_minute
        assert sum(end - 1 < one <= end for one in passed) <= burst


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def test_shared_windows_are_common_to_all_processes_and_bounded(tmp_path: Path) -> None:
    clock = Clock()
    settings = RateSettings(
        per_minute=4, burst=0, shared=True, most=3, tools={"bash": RateLimit(per_minute=3)}
    )
    one, two = (RateLimits(settings, clock=clock, folder=tmp_path) for _ in range(2))
    assert [await allowed(one, 2), await allowed(two, 2), await allowed(one, 1)] == [2, 1, 0]
    assert await allowed(two, 2, tool="read") == 1  # what bash was denied did not count
    bob, eve = Principal("local", "bob"), Principal("local", "eve")
    assert await allowed(one, 1, bob, "read") == 1
    assert await allowed(two, 1, eve, "read") == 0  # there are three already
    clock.now += 60.1
    assert await allowed(two, 1, eve, "read") == 1
    assert await allowed(one, 9, tool="bash") == 3
    assert files_in(tmp_path) <= 4
    clock.now = 5.0  # the machine was started again
    assert await allowed(one, 9, tool="read") == 4


@pytest.mark.process
async def test_processes_that_share_a_rate_never_exceed_it(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from evoclaw.governance.rate_limits import RateLimits, RateSettings
from tests.governance.test_rate_limits import allowed

settings = RateSettings(per_minute=50, burst=0, shared=True)
print(asyncio.run(allowed(RateLimits(settings, folder=Path(sys.argv[1])), 100)))
"""
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    async with asyncio.timeout(50):
        said = [(await child.communicate())[0] for child in children]
    assert sum(map(int, said)) == 50


async def test_a_lock_held_by_another_process_denies_without_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.governance.rate_limits.LOCK_TIMEOUT_S", 0.02)
    rates = RateLimits(RateSettings(shared=True), folder=tmp_path)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert await allowed(rates, 1) == 0
    assert await allowed(rates, 1) == 1


def test_shared_rate_limits_need_a_folder() -> None:
    with pytest.raises(ConfigError, match="need a folder"):
        RateLimits(RateSettings(shared=True))


def test_rate_settings_are_read_from_tables_and_invalid_ones_are_refused() -> None:
    given = {"per_minute": 60, "burst": 5, "tools": {"bash": {"per_minute": 6}}}
    settings = msgspec.convert(given, RateSettings)
    assert settings.tools["bash"] == RateLimit(per_minute=6)
    for wrong in ({"per_minute": -1}, {"bursts": 3}, {"tools": {"bash": {"minute": 3}}}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, RateSettings)
