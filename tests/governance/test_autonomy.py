"""The three levels: what is free, what is asked for, what is denied."""

from __future__ import annotations

import pytest

from evoclaw.core.ports import ALLOW, Ask
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.autonomy import Autonomy, Level, WorkspaceWrites

READS = Tool("read", "", {}, effect=Effect.READ)
WRITES = Tool("write", "", {}, acts=False)
"""In the workspace alone."""
SHOWS = Tool("canvas", "", {}, frozenset({"ui"}), acts=False)
ACTS = Tool("bash", "", {})
TELLS = Tool("notify", "", {}, effect=Effect.READ, acts=True)


async def verdict(level: Level, tool: Tool, writes: WorkspaceWrites = WorkspaceWrites.ASK) -> str:
    made = await Autonomy(level, writes).judge(Call("1", tool, {}, "r", 1.0))
    return f"{type(made).__name__} {made.code}".strip()


@pytest.mark.parametrize(
    ("tool", "supervised", "free_writes", "read_only"),
    [
        (READS, "Allow", "Allow", "Allow"),
        (WRITES, "Ask supervised_write", "Allow", "Deny read_only"),
        (SHOWS, "Allow", "Allow", "Deny read_only"),
        (ACTS, "Ask supervised", "Ask supervised", "Deny read_only"),
        (TELLS, "Ask supervised", "Ask supervised", "Deny read_only"),
    ],
)
async def test_each_autonomy_level_allows_asks_or_denies_each_tool(
    tool: Tool, supervised: str, free_writes: str, read_only: str
) -> None:
    assert await verdict(Level.SUPERVISED, tool) == supervised
    assert await verdict(Level.SUPERVISED, tool, WorkspaceWrites.ALLOW) == free_writes
    assert await verdict(Level.READ_ONLY, tool) == read_only
    assert await verdict(Level.READ_ONLY, tool, WorkspaceWrites.ALLOW) == read_only
    assert await verdict(Level.FULL, tool) == "Allow"


async def test_the_approval_reason_names_the_effect_of_the_tool() -> None:
    supervised = Autonomy(Level.SUPERVISED)
    told: list[str] = []
    for tool in (ACTS, TELLS, WRITES):
        asked = await supervised.judge(Call("1", tool, {}, "r", 1.0))
        assert isinstance(asked, Ask)
        told.append(asked.reason)
    assert told == [
        "bash writes or executes",
        "notify sends or triggers something outside",
        "write writes in the workspace",
    ]


async def test_a_forwarded_call_that_only_reads_is_allowed_at_every_level() -> None:
    forwards = Tool("edge_call", "", {})
    for level in Level:
        for reads in (True, False):
            policy = Autonomy(level, only_reads=lambda _, reads=reads: reads)
            verdict = await policy.judge(Call("1", forwards, {}, "r", 1.0))
            assert (verdict == ALLOW) is (reads or level is Level.FULL), (level, reads)
