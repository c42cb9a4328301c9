"""Approval cards: the machine, the command or the diff, why, and exactly what `always` covers."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Locator, expect

from evoclaw.core.messages import JSON
from tests.page.house import SECOND
from tests.page.looking import Looker
from tests.support.up_process import ok, start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]

OLD = "\n".join(["start", *(f"line {n}" for n in range(12)), "port = 1", "end"])
NEW = OLD.replace("port = 1", "port = 2\nhost = 'a'")
PATCH = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-old words\n+new words"


async def card_in(looker: Looker, view: str, tool: str, given: JSON) -> tuple[str, Locator]:
    """A run that waits for an approval of a call, and its card in a view."""
    run = await start_run(
        looker.house.client, f"call {tool} {json.dumps(given)}\nsay done", agent="careful"
    )
    waiting = await wait_for_state(looker.house.client, run, "waiting")
    if view == "chat":
        await looker.enter("chat", str(waiting["session_id"]))
        return run, looker.page.locator(".wait")
    await looker.enter("approvals")
    cards = looker.page.locator(".approval").filter(has=looker.page.get_by_title(run))
    return run, cards


async def end(looker: Looker, run: str) -> None:
    ok(await looker.house.client.post(f"/v1/runs/{run}/cancel"))
    await wait_for_state(looker.house.client, run)


@pytest.mark.parametrize("view", ["chat", "approvals"])
async def test_a_card_names_machine_command_reason_and_scope(looker: Looker, view: str) -> None:
    asked = {"agent_id": SECOND, "action": "bash", "params": {"command": 'echo "$HOME" # why'}}
    run, card = await card_in(looker, view, "edge_call", asked)

    await expect(card.get_by_role("heading")).to_have_text(f"edge_call on {SECOND} wants to run")
    command = card.get_by_label("the command")
    await expect(command).to_have_text('echo "$HOME" # why')
    await expect(command.locator(".hl-comment")).to_have_text("# why")
    (item,) = [
        one
        for one in ok(await looker.house.client.get("/v1/approvals"))["items"]
        if one["run_id"] == run
    ]
    facts = card.locator(".facts")
    await expect(facts).to_contain_text(item["reason"])
    await expect(facts).to_contain_text(f"always covers{item['covers']}")
    await card.get_by_text("All arguments, exactly as sent").click()
    await expect(card.get_by_label("argument params")).to_contain_text("echo")
    for scheme in ("light", "dark"):
        await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        assert await looker.barriers() == []
    await end(looker, run)


async def test_the_change_of_a_file_is_a_coloured_diff(looker: Looker) -> None:
    given = {"path": "conf.txt", "old_string": OLD, "new_string": NEW, "replace_all": True}
    run, card = await card_in(looker, "approvals", "edit", given)
    diff = card.get_by_label("the change, as a diff")

    await expect(card).to_contain_text("conf.txt")
    await expect(diff.locator(".removed")).to_have_text(["-port = 1"])
    await expect(diff.locator(".added")).to_have_text(["+port = 2", "+host = 'a'"])
    await expect(diff.locator(".hunk")).to_have_text(["@@ -11,5 +11,6 @@"])
    await expect(diff).not_to_contain_text("line 8")
    await expect(card.get_by_label("argument replace_all")).to_have_text("true")
    for scheme in ("light", "dark"):
        await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        assert await looker.barriers() == []
    await end(looker, run)


@pytest.mark.parametrize(
    ("tool", "given", "added", "removed"),
    [
        ("write", {"path": "a.txt", "content": "one\ntwo\n"}, ["+one", "+two"], []),
        ("apply_patch", {"patch": PATCH}, ["+++ b/notes.txt", "+new words"],
         ["--- a/notes.txt", "-old words"]),
    ],
)  # fmt: skip
async def test_written_and_patched_files_are_diffs_in_the_chat(
    looker: Looker, tool: str, given: JSON, added: list[str], removed: list[str]
) -> None:
    run, card = await card_in(looker, "chat", tool, given)
    diff = card.get_by_label("the change, as a diff")

    await expect(diff.locator(".added")).to_have_text(added)
    await expect(diff.locator(".removed")).to_have_text(removed)
    await end(looker, run)


async def test_a_hidden_character_in_a_diff_is_written_out(looker: Looker) -> None:
    given = {"path": "a.txt", "old_string": "safe", "new_string": "sa\u200bfe"}
    run, card = await card_in(looker, "chat", "edit", given)

    await expect(card.locator(".added")).to_have_text("+sa⟨U+200B⟩fe")
    await expect(card).to_contain_text("hidden characters are written out")
    await end(looker, run)


async def test_a_chat_card_is_denied_with_a_reason_by_keyboard(looker: Looker) -> None:
    run, card = await card_in(looker, "chat", "bash", {"command": "touch never"})
    keyboard = looker.page.keyboard
    once = card.get_by_role("button", name="Approve once: bash")
    await once.focus()
    await keyboard.press("Tab")
    await expect(card.get_by_role("button", name="Always: bash")).to_be_focused()
    await keyboard.press("Tab")
    await expect(card.get_by_role("button", name="Deny bash…")).to_be_focused()
    await keyboard.press("Enter")
    await expect(card.get_by_label("Reason, shown to the model (optional)")).to_be_focused()
    await keyboard.type("not today")
    await keyboard.press("Enter")

    await wait_for_state(looker.house.client, run)
    records = (await looker.house.client.get(f"/v1/runs/{run}/records")).body.decode()
    assert "not today" in records and "call_started" not in records


async def test_always_covers_the_same_command_in_the_session(looker: Looker) -> None:
    client = looker.house.client
    run, card = await card_in(looker, "chat", "bash", {"command": "echo always"})
    await card.get_by_role("button", name="Always").click()
    await expect(looker.page.get_by_role("log")).to_contain_text("done")
    view = await wait_for_state(client, run)

    again = await client.post(
        f"/v1/sessions/{view['session_id']}/messages",
        {"message": 'call bash {"command": "echo always"}\nsay not asked again'},
    )
    await wait_for_state(client, ok(again)["run_id"])
    await expect(looker.page.get_by_role("log")).to_contain_text("not asked again")
