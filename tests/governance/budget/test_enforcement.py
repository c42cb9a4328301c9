"""The eight enforcement points, each with something it lets pass and something it does not."""

from __future__ import annotations

import pytest

from evoclaw.core.messages import JSON
from evoclaw.core.ports import Allow, Ask, Deny, Verdict
from evoclaw.core.tools import Tool
from evoclaw.governance.budget.boundaries import BoundaryFinding, EnforcementResult, verdict_of
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.budget.settings import AllowedLocations, BudgetSettings
from tests.support.budgets import (
    BASH,
    EDIT,
    FETCH,
    PATCH,
    READ,
    SEARCH,
    WRITE,
    Clock,
    call,
)

SRC = AllowedLocations(read=("src/**", "README.md"), write=("src", "docs/*.md"))
WEB = AllowedLocations(domains=("example.org", "*.example.net", "bücher.example"))


async def judged(
    allowed: AllowedLocations, which: Tool, terms: BudgetOptions | None = None, **args: JSON
) -> Verdict:
    budget = RunBudget(
        MemoryLedger(), "r", BudgetSettings(allowed=allowed), terms or BudgetOptions()
    )
    return await budget.judge(call(which, **args))


@pytest.mark.parametrize("path", ["src/a.py", "./src/x/../b/c.py", "README.md", "src"])
async def test_ef_01_a_file_inside_the_allowed_paths_may_be_read(path: str) -> None:
    assert isinstance(await judged(SRC, READ, path=path), Allow)


@pytest.mark.parametrize(
    "path", ["secret", "src/../secret", "../src/a", "/src/a.py", "/etc/passwd", "srcx/a", ".", ""]
)
async def test_ef_01_a_file_outside_the_allowed_paths_may_not_be_read(path: str) -> None:
    verdict = await judged(SRC, READ, path=path)
    assert isinstance(verdict, Deny) and verdict.code == "budget_ef01"


async def test_ef_01_a_read_without_a_path_means_the_whole_workspace() -> None:
    assert isinstance(await judged(SRC, READ), Deny)
    assert isinstance(await judged(AllowedLocations(read=("**",)), READ), Allow)
    assert isinstance(await judged(AllowedLocations(read=("**",)), READ, path="../x"), Deny)


@pytest.mark.parametrize("path", ["src/deep/a.py", "docs/a.md"])
async def test_ef_02_a_file_inside_the_allowed_paths_may_be_written(path: str) -> None:
    assert isinstance(await judged(SRC, WRITE, path=path, content="x"), Allow)


@pytest.mark.parametrize("path", ["README.md", "docs/a.txt", "docs/deep/a.md", "src/../x"])
async def test_ef_02_a_file_outside_the_allowed_paths_may_not_be_written(path: str) -> None:
    more: dict[str, JSON] = {"content": "x", "old_string": "a", "new_string": "b"}
    for which in (WRITE, EDIT):
        verdict = await judged(SRC, which, None, path=path, **more)
        assert isinstance(verdict, Deny) and verdict.code == "budget_ef02"


async def test_ef_02_every_file_of_a_patch_is_checked() -> None:
    inside = "*** Begin Patch\n*** Update File: src/a\n@@\n-x\n+y\n*** End Patch"
    assert isinstance(await judged(SRC, PATCH, patch=inside), Allow)
    for line in ("*** Delete File: Makefile", "*** Move to: ../a", "*** Add File: .git/hooks/x"):
        sneaky = inside.replace("@@", f"{line}\n@@")
        assert isinstance(await judged(SRC, PATCH, patch=sneaky), Deny)
    assert isinstance(await judged(SRC, PATCH, patch="no files at all"), Deny)


def only_ls(command: str) -> BoundaryFinding:
    """A rule about commands, as somebody else may make one."""
    if command == "ls":
        return BoundaryFinding(EnforcementResult.ALLOWED)
    return BoundaryFinding(EnforcementResult.BLOCKED, "EF-03", f"{command} is no ls")


async def test_ef_03_a_command_allowed_by_its_rule_may_run() -> None:
    assert isinstance(
        await judged(AllowedLocations(), BASH, BudgetOptions(commands=only_ls), command="ls"), Allow
    )
    assert isinstance(await judged(AllowedLocations(), BASH, command="rm -r /"), Allow), (
        "no rule was given"
    )


async def test_ef_03_a_command_denied_by_its_rule_may_not_run() -> None:
    for args in ({"command": "rm"}, {}, {"command": ["ls"]}):
        verdict = await judged(SRC, BASH, BudgetOptions(commands=only_ls), **args)
        assert isinstance(verdict, Deny) and verdict.code == "budget_ef03"


async def test_ef_03_with_bounded_paths_a_command_without_a_rule_needs_approval() -> None:
    for allowed in (SRC, WEB):
        verdict = await judged(allowed, BASH, command="cat /etc/passwd")
        assert isinstance(verdict, Ask) and verdict.code == "budget_ef03"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/x",
        "HTTPS://EXAMPLE.ORG:8443/",
        "http://a.b.example.net",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "example.org/path",
        "https://example.org./",
    ],
)
async def test_ef_04_an_allowed_host_may_be_reached(url: str) -> None:
    assert isinstance(await judged(WEB, FETCH, url=url), Allow)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.test/",
        "https://example.org@evil.test/",
        "https://example.org.evil.test/",
        "https://example.net/",
        "https://evilexample.net/",
        "https://sub.example.org/",
        "http://[::1]/",
        "http://[bad/",
        "file:///etc/passwd",
        "//evil.test/x",
    ],
)
async def test_ef_04_any_other_host_may_not_be_reached(url: str) -> None:
    verdict = await judged(WEB, FETCH, url=url)
    assert isinstance(verdict, Deny) and verdict.code == "budget_ef04"


async def test_ef_04_hosts_are_found_in_nested_arguments_and_none_needs_approval() -> None:
    hidden: JSON = {"steps": [{"go": "https://evil.test"}]}
    assert isinstance(await judged(WEB, FETCH, url="https://example.org", more=hidden), Deny)
    assert isinstance(await judged(WEB, SEARCH, query="cats"), Ask)
    assert isinstance(await judged(AllowedLocations(), SEARCH, query="cats"), Allow)


async def test_ef_05_turns_are_counted_and_limited() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(turns=2))
    verdicts = [await budget.admit(turn) for turn in (1, 2, 3)]
    assert [isinstance(verdict, Allow) for verdict in verdicts] == [True, True, False]
    assert isinstance(last := verdicts[-1], Deny) and last.code == "budget_turns"


async def test_ef_06_after_its_time_limit_a_run_gets_no_reply_and_no_call() -> None:
    clock = Clock()
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(minutes=1), BudgetOptions(clock=clock))
    clock.now += 59
    assert isinstance(await budget.admit(1), Allow)
    assert isinstance(await budget.judge(call(READ, 1, path="a")), Allow)
    clock.now += 2
    for verdict in (await budget.admit(2), await budget.judge(call(READ, 2, path="a"))):
        assert isinstance(verdict, Deny) and verdict.code == "budget_seconds"
        assert "EF-06" in verdict.for_people


async def test_ef_07_changed_files_are_limited() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(files=2))
    verdicts = [await budget.judge(call(WRITE, n, path=str(n), content="")) for n in range(3)]
    assert [isinstance(verdict, Allow) for verdict in verdicts] == [True, True, False]
    assert isinstance(last := verdicts[-1], Deny) and last.code == "budget_files"
    assert isinstance(await budget.judge(call(READ, 9, path="9")), Allow), "reading goes on"


async def test_ef_08_changed_lines_are_limited() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(lines=10))
    assert isinstance(await budget.judge(call(WRITE, 1, path="a", content="x\n" * 7)), Allow)
    verdict = await budget.judge(call(WRITE, 2, path="a", content="x\n" * 4))
    assert isinstance(verdict, Deny) and verdict.code == "budget_lines"
    assert "only 3 lines left" in verdict.reason
    assert isinstance(await budget.judge(call(WRITE, 3, path="a", content="x\n" * 3)), Allow)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [("allowed", Allow), ("blocked", Deny), ("warned", Ask), ("escalated", Ask)],
)
def test_each_enforcement_result_maps_to_a_verdict(result: str, verdict: type) -> None:
    assert isinstance(
        verdict_of(BoundaryFinding(EnforcementResult(result), "EF-01", "why")), verdict
    )
