"""Approvals: exactly what would run, answered one by one, by keys, together, or not at all."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from evoclaw.core.messages import JSON
from tests.page.house import House
from tests.page.looking import Looker
from tests.support.up_process import ok, start_run, wait_for_state
from tests.support.waiting import until

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_waits(house: House) -> None:
    """Whatever another test left unanswered is denied."""

    async def so() -> bool:
        left = await waiting(house)
        for one in left:
            # A run that is just being cancelled may be quicker.
            await house.client.post(f"/v1/approvals/{one['id']}/answer", {"decision": "deny"})
        return not left

    await until(so, 20, "nothing waits")


async def waiting(house: House) -> list[JSON]:
    items = ok(await house.client.get("/v1/approvals"))["items"]
    return [one for one in items if one["standing"] == "waiting"]


async def asked(looker: Looker, *commands: str) -> tuple[str, Locator]:
    """A run that wants to run these, and its cards once they are seen."""
    calls = [f"call bash {json.dumps({'command': one})}" for one in commands]
    run = await start_run(looker.house.client, f"{' && '.join(calls)}\nsay done", agent="careful")
    await looker.enter("approvals")
    cards = looker.page.locator(".approval")
    await expect(cards).to_have_count(len(commands))
    return run, cards


async def went_on(looker: Looker, run: str) -> str:
    await wait_for_state(looker.house.client, run)
    return (await looker.house.client.get(f"/v1/runs/{run}/records")).body.decode()


async def test_keyboard_shortcuts_answer_only_the_focused_approval(looker: Looker) -> None:
    run, cards = await asked(looker, "echo one", "echo two")
    for key in ("j", "j"):
        await looker.page.keyboard.press(key)
    await expect(cards.nth(1)).to_be_focused()
    await looker.page.keyboard.press("o")
    await expect(cards).to_have_count(1)
    await expect(cards).to_contain_text("echo one")

    await looker.page.keyboard.press("g")
    await looker.page.keyboard.press("s")
    await expect(looker.page.get_by_role("heading", level=1)).to_have_text("Settings")
    (left,) = await waiting(looker.house)
    assert left["arguments"] == {"command": "echo one"}, "g s leads elsewhere and approves nothing"

    await looker.go("approvals")
    await expect(cards).to_have_count(1)
    await looker.page.keyboard.press("j")
    await looker.page.keyboard.press("x")
    await looker.page.keyboard.press("d")
    await looker.page.get_by_role("dialog").get_by_role("textbox").fill("only joking")
    await looker.page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    records = await went_on(looker, run)
    assert "only joking" in records and records.count('"call_started"') == 1


async def test_a_bulk_approval_reports_each_call_that_failed(looker: Looker) -> None:
    run, cards = await asked(looker, "echo one", "echo two", "echo three")
    elsewhere = (await waiting(looker.house))[0]["id"]

    await looker.page.get_by_label("Select all").check()
    await looker.button("Approve 3 once").click()
    await looker.page.route(
        "**/events*", lambda route: route.abort()
    )  # the page is told too late of what somebody else answers now
    answer = {"decision": "deny", "reason": "me first"}
    ok(await looker.house.client.post(f"/v1/approvals/{elsewhere}/answer", answer))
    await looker.page.get_by_role("dialog").get_by_role("button", name="Approve 3 once").click()

    report = looker.page.locator(".approval-report")
    await expect(report).to_contain_text("2 approved once; 1 failed:")
    await expect(report).to_contain_text(f"{elsewhere}: it was already denied")
    assert (await went_on(looker, run)).count('"call_started"') == 2
    await expect(cards).to_have_count(0)
    looker.complaints.clear()  # the browser itself notes the answer 409


async def test_an_approval_shows_hidden_characters_and_folded_lines(looker: Looker) -> None:
    long = "\n".join(f"echo line {number}" for number in range(40))
    run, cards = await asked(looker, "echo \u202egnp.exe", long)

    await expect(cards.nth(0)).to_contain_text("echo ⟨U+202E⟩gnp.exe")
    await expect(cards.nth(0)).to_contain_text("hidden characters are written out")
    await expect(cards.nth(1)).to_contain_text("truncated: not all of it is shown")
    await expect(cards.nth(1)).not_to_contain_text("line 39")
    await cards.nth(1).get_by_role("button", name="Show the other").click()
    await expect(cards.nth(1)).to_contain_text("line 39")
    await expect(cards.nth(0)).to_contain_text("exactly the command `echo ⟨U+202E⟩gnp.exe`")
    ok(await looker.house.client.post(f"/v1/runs/{run}/cancel"))


FLOW = """
[[steps]]
name = "look"
kind = "agent"
agent = "careful"
message = '''
call bash {"command": "ls"}
say done'''

[[steps]]
name = "sure"
kind = "approval"
message = "Shall I?"
"""


async def test_steps_of_workflows_are_approved_from_now_on(looker: Looker) -> None:
    folder = looker.house.up.home / "workflows"
    folder.mkdir(exist_ok=True)
    (folder / "evening.toml").write_text(FLOW)
    client = looker.house.client

    async def start() -> str:
        return ok(await client.post("/v1/workflows/evening/runs", {}))["id"]

    async def ended(id_: str) -> bool:
        return ok(await client.get(f"/v1/workflow-runs/{id_}"))["state"] == "succeeded"

    first = await start()
    await looker.enter("approvals")
    card = looker.page.locator(".approval")
    await expect(card).to_contain_text("step 'look' of workflow 'evening' from now on")
    await card.get_by_role("button", name="Always for this step").click()
    await expect(card).to_have_count(0)

    row = looker.page.get_by_role("row").filter(has_text="Shall I?")
    await expect(row).to_contain_text("asked in each run")
    await row.get_by_role("button", name="Always approve step sure of evening").click()
    dialog = looker.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("until its definition changes")
    await dialog.get_by_role("button", name="Always approve").click()
    await expect(row).to_contain_text("always, by")
    await until(lambda: ended(first), 30)
    second = await start()
    await until(lambda: ended(second), 30)

    await row.get_by_role("button", name="Withdraw the approval of step sure").click()
    await expect(row).to_contain_text("asked in each run")
    (folder / "evening.toml").unlink()


async def test_session_approvals_are_listed_and_can_be_withdrawn(looker: Looker) -> None:
    run, cards = await asked(looker, "echo again")
    await cards.get_by_role("button", name="Always").click()
    await went_on(looker, run)

    rows = looker.page.get_by_role("row").filter(has=looker.page.get_by_text("Withdraw"))
    row = rows.filter(has_text=run[:8])
    await expect(row).to_contain_text("exactly the command `echo again`; in this session")
    await row.get_by_role("button", name="Withdraw").click()
    await expect(row).to_have_count(0)


async def test_a_read_only_token_sees_approvals_but_cannot_answer(looker: Looker) -> None:
    run, cards = await asked(looker, "echo hello")
    wanted = {"name": "looks", "scopes": ["approvals:read", "sessions:read", "runs:read"]}
    token = ok(await looker.house.client.post("/v1/tokens", wanted))["token"]

    await looker.button("Log out").click()
    await looker.page.get_by_label("Token").fill(token)
    await looker.button("Log in").click()
    await expect(looker.page.locator("#link")).to_have_attribute("data-state", "open")
    await looker.go("approvals")

    await expect(cards).to_contain_text("echo hello")
    await expect(cards.get_by_role("button")).to_have_count(0)
    await expect(looker.page.get_by_role("note")).to_contain_text("lacks the scope 'human'")
    await looker.page.keyboard.press("j")
    await looker.page.keyboard.press("o")
    assert len(await waiting(looker.house)) == 1
    ok(await looker.house.client.post(f"/v1/runs/{run}/cancel"))
    looker.complaints.clear()  # what other views asked for and this token may not
