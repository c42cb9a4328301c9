"""The first rules: permissions, autonomy, and several as one."""

from __future__ import annotations

import pytest

from evoclaw.core.chain import Chain
from evoclaw.core.ports import ALLOW, Approval, Ask, Decision, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.approvals import SessionApprovalCache
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions

READ = Tool("read", "", {}, permissions=frozenset({"file_read"}), effect=Effect.READ)
COMMIT = Tool("git_commit", "", {}, permissions=frozenset({"git", "file_write"}))
FREE = Tool("free", "", {})


def call(tool: Tool) -> Call:
    return Call("1", tool, {}, "r", 1.0)


async def test_every_permission_of_a_tool_must_be_granted() -> None:
    verdict = await Permissions(frozenset({"git"})).judge(call(COMMIT))
    assert isinstance(verdict, Deny)
    assert verdict.reason == (
        "Error: Permission denied for tool 'git_commit' (requires: file_write).\n"
        "This agent does not have file_write access. Explain to the user."
    )
    both = Permissions(frozenset({"git", "file_write"}))
    assert await both.judge(call(COMMIT)) is ALLOW


async def test_a_star_grants_everything_and_an_empty_set_nothing() -> None:
    assert await Permissions(frozenset({"*"})).judge(call(COMMIT)) is ALLOW
    nothing = Permissions(frozenset())
    assert isinstance(await nothing.judge(call(READ)), Deny)
    assert isinstance(await nothing.judge(call(FREE)), Deny)


@pytest.mark.parametrize(
    ("level", "reading", "writing"),
    [
        (Level.READ_ONLY, "Allow", "Deny"),
        (Level.SUPERVISED, "Allow", "Ask"),
        (Level.FULL, "Allow", "Allow"),
    ],
)
async def test_autonomy_by_level(level: Level, reading: str, writing: str) -> None:
    policy = Autonomy(level)
    assert type(await policy.judge(call(READ))).__name__ == reading
    assert type(await policy.judge(call(COMMIT))).__name__ == writing


class Always(Policy):
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked = 0

    async def judge(self, call: Call) -> Verdict:
        self.asked += 1
        return self.verdict

    async def admit(self, turn: int) -> Verdict:
        self.asked += 1
        return self.verdict


async def test_a_later_deny_beats_an_earlier_ask_and_ends_the_chain() -> None:
    never = Always(ALLOW)
    chain = Chain((Always(Ask("a", "may it?")), Always(Deny("d", "no")), never))
    assert await chain.judge(call(READ)) == Deny("d", "no")
    assert await chain.admit(1) == Deny("d", "no")
    assert never.asked == 0


async def test_the_first_ask_is_the_verdict_when_no_policy_denies() -> None:
    chain = Chain((Always(ALLOW), Always(Ask("a", "1")), Always(Ask("b", "2"))))
    assert await chain.judge(call(READ)) == Ask("a", "1")
    assert await chain.admit(1) == Ask("a", "1")
    assert await Chain(()).judge(call(READ)) is ALLOW


async def test_a_session_approval_is_remembered_for_its_tool_only() -> None:
    class Person:
        asked = 0

        async def approve(self, call: Call, ask: Ask) -> Approval:
            self.asked += 1
            return Approval(Decision.SESSION)

    person = Person()
    approver = SessionApprovalCache(person)
    ask = Ask("a", "may it?")
    for tool in (COMMIT, COMMIT, FREE):
        assert (await approver.approve(call(tool), ask)).decision is Decision.SESSION
    assert person.asked == 2
