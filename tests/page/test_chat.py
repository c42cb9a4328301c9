"""Talking: an answer as it is streamed, stopped, steered; what must be approved; a canvas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

from tests.page.house import SECOND, House
from tests.page.looking import Looker
from tests.support.up_process import ok, start_run, up_process, wait_for_state
from tests.support.waiting import until

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "\x1b]0;owned\x07\x1b[31mred\x1b[0m \u202egnp.exe \u200bjavascript:alert(1)"
)
NEVER_SHOWN = ("\x1b", "\x07", "\u202e", "\u200b")


def bash(command: str) -> str:
    return f"call bash {json.dumps({'command': command})}"


async def say(looker: Looker, text: str) -> None:
    box = looker.page.get_by_label("Message")
    await box.fill(text)
    await box.press("Enter")


async def test_an_answer_is_streamed_while_it_is_generated(looker: Looker) -> None:
    await looker.enter("chat")
    house = looker.house
    await say(looker, "wait answer 40")
    log = looker.page.get_by_role("log")

    await expect(log).to_contain_text("word19")
    await expect(log).not_to_contain_text("word20")
    await expect(looker.button("Stop")).to_be_visible()
    house.up.models.gates["answer"].set()

    await expect(log).to_contain_text("word39")
    await expect(looker.button("Send")).to_be_visible()
    await expect(looker.button("Stop")).to_be_hidden()


async def test_a_run_can_be_stopped_and_the_session_continues(looker: Looker) -> None:
    await looker.enter("chat")
    await say(looker, "wait stopped 40")
    await expect(looker.page.get_by_role("log")).to_contain_text("word19")

    await looker.button("Stop").click()

    await expect(looker.page.get_by_role("log")).to_contain_text("cancelled")
    await say(looker, "say and on we go")
    await expect(looker.page.get_by_role("log")).to_contain_text("and on we go")


async def test_a_run_is_steered_while_it_works(looker: Looker) -> None:
    await looker.enter("chat")
    await say(looker, bash("while [ ! -e go-on ]; do sleep 0.1; done") + "\nsay first")
    await expect(looker.page.get_by_role("article", name="call of bash")).to_be_visible()

    await looker.page.locator("#composer").fill("say steered instead")
    await looker.button("Steer").click()
    for edge in (looker.house.up.workspace, looker.house.second.workspace):
        (edge / "go-on").touch()

    await expect(looker.page.get_by_role("log")).to_contain_text("steered instead")


async def test_several_sessions_are_listed_and_can_be_switched(looker: Looker) -> None:
    for words in ("say about apples", "say about pears"):
        await looker.enter("chat")
        await say(looker, words)
        await expect(looker.page.get_by_role("log")).to_contain_text(words.removeprefix("say "))
    sessions = looker.page.get_by_role("complementary", name="Sessions")
    await sessions.get_by_text("say about apples").first.click()

    await expect(looker.page.get_by_role("log")).to_contain_text("about apples")
    await expect(looker.page.get_by_role("log")).not_to_contain_text("about pears")


async def test_hostile_markup_is_shown_as_plain_text(looker: Looker, house: House) -> None:
    (house.up.workspace / "hostile.txt").write_text(HOSTILE)
    (house.second.workspace / "hostile.txt").write_text(HOSTILE)
    run = await start_run(house.client, f"{bash('cat hostile.txt')}\nsay {HOSTILE}", title=HOSTILE)
    view = await wait_for_state(house.client, run)
    for place in (("chat", str(view["session_id"])), ("runs", run), ("runs",), ("audit",)):
        await looker.enter(*place)
        await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)
        shown = await looker.page.locator("body").inner_text()
        assert not [one for one in NEVER_SHOWN if one in shown], place
        assert await looker.page.evaluate("window.hacked") is None, place
        assert await looker.page.locator("img").count() == 0, place
    await looker.enter("chat", str(view["session_id"]))
    await expect(looker.page.get_by_role("log")).to_contain_text("<script>window.hacked = 1")


async def test_a_call_runs_after_it_is_approved_in_the_chat(looker: Looker) -> None:
    run = await start_run(
        looker.house.client, f"{bash('echo it ran')}\nsay thank you", agent="careful"
    )
    view = await wait_for_state(looker.house.client, run, "waiting")
    await looker.enter("chat", str(view["session_id"]))

    await looker.button("Approve once").first.click()

    await expect(looker.page.get_by_role("log")).to_contain_text("thank you")
    await expect(looker.page.get_by_role("log")).to_contain_text("it ran")


async def test_a_denied_call_never_runs_and_the_reason_is_reported(looker: Looker) -> None:
    client = looker.house.client
    run = await start_run(client, f"{bash('touch never')}\nsay so be it", agent="careful")
    await wait_for_state(client, run, "waiting")
    await looker.enter("approvals")
    card = looker.page.get_by_role("article", name="bash requested by careful")
    await expect(card).to_contain_text("touch never")

    await card.get_by_role("button", name="Deny").click()
    await looker.page.get_by_role("dialog").get_by_role("textbox").fill("not on a Sunday")
    await looker.page.get_by_role("dialog").get_by_role("button", name="Deny").click()

    await wait_for_state(client, run)
    records = (await client.get(f"/v1/runs/{run}/records")).body.decode()
    assert "not on a Sunday" in records and "call_started" not in records
    assert not (looker.house.up.workspace / "never").exists()


async def test_a_question_is_answered_in_the_chat(looker: Looker) -> None:
    asked = {"question": "Which one?", "options": ["the red one", "the blue one"]}
    run = await start_run(looker.house.client, f"call question {json.dumps(asked)}\nsay chosen")
    view = await wait_for_state(looker.house.client, run, "waiting")
    await looker.enter("chat", str(view["session_id"]))

    await looker.page.get_by_label("the blue one").check()
    await looker.button("Answer").click()

    await expect(looker.page.get_by_role("log")).to_contain_text("chosen")
    records = (await looker.house.client.get(f"/v1/runs/{run}/records")).body.decode()
    assert "the blue one" in records.rpartition("call_finished")[2]


async def test_the_canvas_renders_model_html_without_network_or_storage_access(
    looker: Looker,
) -> None:
    tries = (
        "<h1>drawn</h1><p id=out></p><script>const out = document.getElementById('out');"
        "out.textContent = 'script ran, ';"
        f"fetch('{looker.house.url}/health/live').then(() => out.textContent += 'FETCHED',"
        " () => out.textContent += 'no fetch, ');"
        "try { out.textContent += top.document.title } catch { out.textContent += 'no top, ' }"
        "try { out.textContent += localStorage.length } catch { out.textContent += 'no store' }"
        "</script>"
    )
    shown = {"action": "show", "content": tries, "title": "A try"}
    run = await start_run(looker.house.client, f"call canvas {json.dumps(shown)}\nsay look")
    view = await wait_for_state(looker.house.client, run)
    await looker.enter("chat", str(view["session_id"]))
    await expect(looker.page.get_by_role("log")).to_contain_text("shown at the dashboard")
    panel = looker.page.get_by_role("complementary", name="Canvas")
    await expect(panel).to_be_visible()

    frame = panel.frame_locator("iframe")
    await expect(frame.get_by_role("heading", name="drawn")).to_be_visible()
    await expect(frame.locator("#out")).to_contain_text("script ran, ")
    await expect(frame.locator("#out")).to_contain_text("no fetch, ")
    text = await frame.locator("#out").inner_text()
    assert "no top" in text and "no store" in text and "FETCHED" not in text
    # The browser says what it stopped: that is the point here.
    assert all("Content Security Policy" in one for one in looker.complaints), looker.complaints
    looker.complaints.clear()
    ok(await looker.house.client.get(f"/v1/sessions/{view['session_id']}/canvas"))


async def test_an_answer_is_rated_in_the_chat_and_the_rating_is_shown_again(
    looker: Looker,
) -> None:
    client, page = looker.house.client, looker.page
    run = await start_run(client, "say a fine answer")
    view = await wait_for_state(client, run)
    place = ("chat", str(view["session_id"]))
    good, bad = looker.button("Rate as good"), looker.button("Rate as bad")
    await looker.enter(*place)
    await expect(page.get_by_role("group", name="Rating")).to_have_count(1)
    await expect(good).to_have_attribute("aria-pressed", "false")

    await good.press("Enter")

    await expect(good).to_have_attribute("aria-pressed", "true")
    await expect(good).to_be_focused()
    assert ok(await client.get(f"/v1/runs/{run}/rating"))["verdict"] == "good"

    await bad.press("Enter")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill("too short\nand dull")
    await dialog.get_by_role("button", name="Rate as bad").click()

    await expect(bad).to_have_attribute("aria-pressed", "true")
    await expect(good).to_have_attribute("aria-pressed", "false")
    await looker.enter(*place)
    await expect(bad).to_have_attribute("aria-pressed", "true")
    await expect(bad).to_have_attribute("title", "Rated as bad: too short and dull")
    found = ok(await client.get(f"/v1/runs/{run}/rating"))
    assert (found["verdict"], found["reason"]) == ("bad", "too short and dull")
    assert await looker.barriers() == []


async def test_what_was_just_answered_is_rated_and_also_a_run_that_failed(looker: Looker) -> None:
    rating = looker.page.get_by_role("group", name="Rating")
    await looker.enter("chat")
    await say(looker, "wait rated 40")
    await expect(looker.page.get_by_role("log")).to_contain_text("word19")
    await expect(rating).to_have_count(0)
    await looker.button("Stop").click()
    ending = looker.page.locator(".ending")
    await expect(ending.get_by_role("group", name="Rating")).to_be_visible()

    await say(looker, "say and now an answer")
    await expect(looker.page.get_by_role("log")).to_contain_text("and now an answer")
    await expect(rating).to_have_count(2)
    good = rating.last.get_by_role("button", name="Rate as good")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    first = ending.get_by_role("button", name="Rate as good")
    await expect(first).to_have_attribute("aria-pressed", "false")


async def test_the_edge_is_chosen_and_every_call_and_approval_names_it(looker: Looker) -> None:
    house = looker.house
    house.up.models.scripts["write here"] = (
        'call write {"path": "chosen.txt", "content": "hello"}\nsay Written.'
    )
    await looker.enter("chat")
    await looker.page.get_by_label("Agent").select_option("careful")
    works_on = looker.page.get_by_label("Works on")
    await expect(works_on).to_have_value("")
    await expect(works_on.locator("option").first).to_have_text("local")
    await works_on.select_option(SECOND)
    await say(looker, "write here")

    heading = looker.page.get_by_role("heading", name=f"write on {SECOND} wants to run")
    await expect(heading).to_be_visible()
    await looker.button("Approve once").click()
    call = looker.page.get_by_role("article", name="call of write")
    await expect(call).to_contain_text(f"on {SECOND}")
    await expect(looker.page.get_by_role("log")).to_contain_text("Written.")
    assert (house.second.workspace / "chosen.txt").exists()
    assert not (house.up.workspace / "chosen.txt").exists()

    await expect(works_on).to_have_value(SECOND)
    await works_on.select_option("")
    await say(looker, "write here")
    heading = looker.page.get_by_role("heading", name="write on local wants to run")
    await expect(heading).to_be_visible()
    await looker.button("Approve once").click()
    await expect(call.last).to_contain_text("on local")
    await expect(call.last).to_contain_text("done")
    assert (house.up.workspace / "chosen.txt").exists()


async def test_a_call_says_that_its_machine_went_offline(looker: Looker) -> None:
    house = looker.house
    await looker.enter("chat")
    await looker.page.get_by_label("Agent").select_option("evoclaw")
    await looker.page.get_by_label("Works on").select_option(SECOND)
    await say(looker, bash("touch begun; while [ ! -e over ]; do sleep 0.1; done") + "\nsay over")
    await until((house.second.workspace / "begun").exists, 60, "the command runs")
    await house.kill_edge()
    try:
        call = looker.page.get_by_role("article", name="call of bash")
        await expect(call).to_contain_text(f"{SECOND} went offline; the call waits until")
        await looker.button("Stop").click()
        await expect(looker.page.get_by_role("log")).to_contain_text("cancelled")
    finally:
        (house.second.workspace / "over").touch()
        await house.start_edge()


async def test_an_open_chat_stays_logged_in_and_shows_the_rest_after_a_restart(
    tmp_path: Path, context: BrowserContext
) -> None:
    async with up_process(tmp_path) as up:
        up.configure()
        client = await up.start()
        house = House(up, client, up.shell)
        looker = Looker(house, await context.new_page())
        await looker.enter("chat")
        await say(looker, "wait restart 8")
        log, link = looker.page.get_by_role("log"), looker.page.locator("#link")
        await expect(log).to_contain_text("word3")
        await up.kill()
        await expect(link).to_have_attribute("data-state", "away")
        up.models.gates["restart"].set()
        await up.start("--api-port", port_of(client.url))
        await expect(link).to_have_attribute("data-state", "open")
        await expect(log).to_contain_text("word7")
        await say(looker, "say still here")
        await expect(log).to_contain_text("still here")


def port_of(url: str) -> str:
    return url.rpartition(":")[2]
