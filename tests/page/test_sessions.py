"""Sessions in the page: what is kept, gone on with, branched and deleted, however long they are."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from playwright.async_api import Route, expect

from tests.page.looking import Looker
from tests.support.up_process import ok, start_run, wait_for_state
from tests.support.waiting import until

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
MARKDOWN = """# Found
It is `here`, **surely**, <b>not there</b>.

1. one
2. two

```python
print("<script>")
```"""
UP = "document.querySelector('.log').scrollTop"
MOVED = """new Promise((done) => {
  const log = document.querySelector('.log'), from = log.scrollTop;
  const look = () => { if (log.scrollTop < from - 100) done(log.scrollTop); };
  log.addEventListener('scrollend', look);
})"""
"""Where the log stands after somebody scrolled up."""


async def say(looker: Looker, text: str) -> None:
    box = looker.page.get_by_label("Message")
    await box.fill(text)
    await box.press("Enter")


async def told(looker: Looker, *messages: tuple[str, str]) -> str:
    """A session in which this was said before."""
    said = [{"role": role, "content": text} for role, text in messages]
    asked = {"model": "evoclaw", "messages": [*said, {"role": "user", "content": "say the end"}]}
    ok(await looker.house.client.post("/v1/chat/completions", asked))
    newest = ok(await looker.house.client.get("/v1/sessions?limit=1"))
    return str(newest["items"][0]["id"])


async def test_a_message_resent_after_a_lost_connection_starts_one_run(looker: Looker) -> None:
    run = await start_run(looker.house.client, "say before")
    session = (await wait_for_state(looker.house.client, run))["session_id"]
    await looker.enter("chat", str(session))

    async def lose_the_answer(route: Route) -> None:
        if route.request.method == "POST":
            await route.fetch()
            await route.abort()
        else:
            await route.continue_()

    await looker.page.route("**/messages", lose_the_answer)
    await say(looker, "say only once")
    await expect(looker.page.get_by_text("Your text is kept")).to_be_visible()
    await looker.page.unroute("**/messages")
    await looker.page.get_by_label("Message").press("Enter")

    await expect(looker.page.get_by_label("Message")).to_have_value("")
    await expect(looker.button("Stop")).to_be_hidden()
    runs = ok(await looker.house.client.get(f"/v1/runs?session_id={session}"))["items"]
    assert [one["asked"] for one in runs] == ["say only once", "say before"]
    assert all("ERR_FAILED" in one for one in looker.complaints), looker.complaints
    looker.complaints.clear()


async def test_a_draft_survives_switching_views(looker: Looker) -> None:
    await looker.enter("chat")
    await looker.page.get_by_label("Message").fill("half a thou")
    await looker.go("runs")
    await looker.go("chat")

    await expect(looker.page.get_by_label("Message")).to_have_value("half a thou")


async def test_a_session_branch_continues_from_the_chosen_message(looker: Looker) -> None:
    session = await told(looker, ("user", "the first"), ("assistant", "answer one"))
    await looker.enter("chat", session)
    log = looker.page.get_by_role("log")
    await expect(log).to_contain_text("say the end")

    await log.get_by_role("button", name="Branch").first.click()

    await expect(looker.page.get_by_role("heading", level=2)).to_have_text(
        ["Sessions", "branch of chat: say the end"]
    )
    await expect(log).to_contain_text("answer one")
    await expect(log).not_to_contain_text("say the end")
    await say(looker, "say another way")
    await expect(log).to_contain_text("another way")
    old = ok(await looker.house.client.get(f"/v1/sessions/{session}"))
    assert old["messages"] == 5


async def test_a_run_that_ends_while_its_session_opens_is_shown_once(looker: Looker) -> None:
    asked = "say it quickly"

    async def late(route: Route) -> None:
        """The page asks for the session of its new run only when that has ended."""
        runs = ok(await looker.house.client.get("/v1/runs?limit=10"))["items"]
        run = next(one for one in runs if one["asked"] == asked)
        await wait_for_state(looker.house.client, run["run_id"])
        await route.continue_()

    async def never(route: Route) -> None:
        """Nothing of the run is told that would put right what is shown."""

    await looker.enter("chat")
    await looker.page.route(re.compile(r"/v1/sessions/\w+$"), late)
    await looker.page.route("**/v1/runs/*/events**", never)
    await say(looker, asked)
    log = looker.page.get_by_role("log")
    await expect(log).to_contain_text("it quickly")

    await expect(log.get_by_role("button", name="Branch")).to_be_attached()
    await expect(log.get_by_role("button", name="Ask differently")).to_have_count(1)
    await looker.page.unroute_all(behavior="ignoreErrors")


async def test_calls_that_end_while_their_session_opens_show_their_results(
    looker: Looker,
) -> None:
    client, done = looker.house.client, looker.house.up.workspace / "call-may-end"
    command = f"until test -e {done.name}; do sleep 0.05; done; echo fine"
    run = await start_run(client, f"call bash {json.dumps({'command': command})}\nsay over")
    session = str(ok(await client.get(f"/v1/runs/{run}"))["session_id"])

    async def has_the_reply() -> bool:
        found = ok(await client.get(f"/v1/sessions/{session}/messages"))["items"]
        return bool(found) and found[-1]["message"]["role"] == "assistant"

    async def finish_first(route: Route) -> None:
        """The page gets the runs of the session only when the run has ended."""
        done.touch()
        await wait_for_state(client, run)
        await route.continue_()

    await until(has_the_reply)
    await looker.page.route("**/v1/runs?session_id=**", finish_first)
    await looker.enter("chat", session)

    card = looker.page.get_by_role("article", name="call of bash")
    await expect(card.locator(".state")).to_contain_text("done")
    await expect(looker.page.locator(".said-by.model")).to_have_count(2)


async def test_a_run_that_ended_before_its_stream_was_opened_shows_its_answer(
    looker: Looker,
) -> None:
    scripts = looker.house.up.models.scripts
    scripts["first question"], scripts["second question"] = "say answer one", "say answer two"
    session = await told(looker, ("user", "hello"), ("assistant", "hello to you"))
    both_ended = asyncio.Event()

    async def hold(route: Route) -> None:
        """The stream of the first run is slow, so the second is not followed yet."""
        await both_ended.wait()
        await route.continue_()

    await looker.enter("chat", session)
    await expect(looker.page.get_by_role("log")).to_contain_text("hello to you")
    await looker.page.route("**/v1/runs/*/events**", hold)
    ended = looker.page.locator(".run[data-state=ended]")
    await say(looker, "first question")
    await expect(ended).to_have_count(1)
    await say(looker, "second question")
    await expect(ended).to_have_count(2)
    both_ended.set()

    replies = looker.page.locator(".run[data-state=ended] .said-by.model .prose")
    await expect(replies).to_have_text(["answer one", "answer two"])


async def test_ask_differently_branches_before_the_original_question(looker: Looker) -> None:
    await looker.enter("chat")
    await say(looker, "say it in this way")
    log = looker.page.get_by_role("log")
    await expect(log.get_by_role("button", name="Branch")).to_be_attached()

    await log.get_by_role("button", name="Ask differently").click()

    await expect(looker.page.get_by_label("Message")).to_have_value("say it in this way")
    await expect(log).not_to_contain_text("it in this way")


async def test_a_session_is_renamed_and_deleted_with_the_keyboard(looker: Looker) -> None:
    session = await told(looker, ("user", "hello"), ("assistant", "hello to you"))
    await looker.enter("chat", session)
    press = looker.page.keyboard.press
    more = looker.page.get_by_label("More about this session")
    await more.focus()
    for key in ("Enter", "Tab", "Enter"):
        await press(key)
    await looker.page.get_by_label("Title").fill("Of bread")
    await press("Enter")
    sessions = looker.page.get_by_role("complementary", name="Sessions")
    await expect(sessions.get_by_text("Of bread")).to_be_visible()

    await more.focus()
    for key in ("Enter", "Tab", "Tab", "Enter"):
        await press(key)
    await expect(looker.page.get_by_role("dialog")).to_contain_text("Of bread")
    await looker.page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")

    await expect(sessions.get_by_text("Of bread")).to_have_count(0)
    gone = await looker.house.client.get(f"/v1/sessions/{session}")
    assert gone.status == 404


async def test_a_long_session_shows_its_latest_messages_and_loads_older_on_demand(
    looker: Looker,
) -> None:
    pairs = [
        one
        for number in range(150)
        for one in (("user", f"question {number}."), ("assistant", f"answer {number}."))
    ]
    await looker.enter("chat", await told(looker, *pairs))
    log = looker.page.get_by_role("log")
    said = looker.page.locator(".said-by")
    await expect(log).to_contain_text("answer 149.")
    await expect(said).to_have_count(100)
    await expect(log).not_to_contain_text("answer 90.")

    for count in (200, 300):
        await looker.page.get_by_role("button", name="Older messages").click()
        await expect(said).to_have_count(count)
    await looker.page.get_by_role("button", name="Older messages").click()

    await expect(said).to_have_count(302)
    await expect(looker.page.get_by_role("button", name="Older messages")).to_be_hidden()


async def test_the_log_follows_new_output_until_the_user_scrolls_up(looker: Looker) -> None:
    await looker.enter("chat")
    await say(looker, "wait scrolled 1200")
    log = looker.page.get_by_role("log")
    await expect(log).to_contain_text("word599")
    left = "(() => { const l = document.querySelector('.log');"
    left += "return l.scrollHeight - l.clientHeight - l.scrollTop; })()"

    async def at_end() -> bool:
        """The log scrolls with the frame after the one that shows the text."""
        return bool(await looker.page.evaluate(left) < 5)

    await until(at_end)
    below = looker.page.get_by_role("button", name="New messages")
    await log.hover()
    moved = asyncio.ensure_future(looker.page.evaluate(MOVED))
    await looker.page.mouse.wheel(0, -200)
    place = await moved
    await expect(below).to_be_hidden()
    looker.house.up.models.gates["scrolled"].set()

    await expect(log).to_contain_text("word1199")
    await expect(below).to_be_visible()
    assert await looker.page.evaluate(UP) == place
    await below.click()
    await until(at_end)


async def test_model_markdown_is_rendered_without_raw_html(looker: Looker) -> None:
    await looker.enter("chat", await told(looker, ("user", "show"), ("assistant", MARKDOWN)))
    log = looker.page.get_by_role("log")

    await expect(log.locator(".code code")).to_have_text('print("<script>")')
    await expect(log.locator("ol > li")).to_have_text(["one", "two"])
    await expect(log.get_by_role("heading", name="Found")).to_be_visible()
    await expect(log.locator("p strong")).to_have_text("surely")
    await expect(log.get_by_text("<b>not there</b>")).to_be_visible()


async def test_concurrent_calls_show_their_edge_and_outcome(
    looker: Looker,
) -> None:
    both = " && ".join(
        f"call bash {json.dumps({'command': command})}" for command in ("echo fine", "exit 3")
    )
    await looker.enter("chat")
    await say(looker, f"{both}\nsay over")
    cards = looker.page.get_by_role("article", name="call of bash")

    await expect(looker.page.locator(".said-by.model .prose").last).to_have_text("over")
    await expect(cards.nth(0).locator(".state")).to_contain_text("done")
    await expect(cards.nth(0)).to_contain_text("fine")
    await expect(cards.nth(0)).to_contain_text("on ")
    await expect(cards.nth(1)).to_contain_text("execution failed")
    await expect(cards.nth(1).get_by_role("link")).to_have_attribute(
        "href",
        "#/runs/" + (ok(await looker.house.client.get("/v1/runs?limit=1"))["items"][0]["run_id"]),
    )
