"""The view of a run: its timeline, its records, what is known of each call; live and played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from evoclaw.core.messages import JSON
from tests.page.house import SECOND, House
from tests.page.looking import PHONE, Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


def _on(edge: str, command: str) -> str:
    asked = {"agent_id": edge, "action": "bash", "params": {"command": command}}
    return f"call edge_call {json.dumps(asked)}"


SIDE_BY_SIDE = " && ".join(
    (_on("local", "sleep 0.4; echo here"), _on(SECOND, "sleep 0.3; echo there"))
)
MANY = (
    f'{SIDE_BY_SIDE}\nwords 3 call bash {{"command":"rm -rf /"}} && call read {{"path":"no"}}\n'
    "say all of it is done"
)


async def _ended(house: House, message: str) -> str:
    run = await start_run(house.client, message)
    await wait_for_state(house.client, run, "ended")
    return run


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def run(house: House) -> str:
    """A run with calls side by side, one that was denied and one that failed."""
    return await _ended(house, MANY)


async def test_the_timeline_shows_concurrent_calls_in_lanes_with_their_outcome(
    looker: Looker, run: str
) -> None:
    await looker.enter("runs", run)
    bars = looker.page.get_by_role("list", name="Timeline: turns and calls in order")
    here = bars.get_by_role("button", name="call edge_call on local succeeded")
    there = bars.get_by_role("button", name=f"call edge_call on {SECOND} succeeded")
    await expect(bars.get_by_role("button", name="call bash on local denied")).to_be_visible()
    failed = bars.get_by_role("button", name="call read on local failed (not_found)")
    await expect(failed).to_be_visible()

    first, second = await here.bounding_box(), await there.bounding_box()
    assert first is not None
    assert second is not None
    assert second["y"] >= first["y"] + first["height"]
    assert second["x"] < first["x"] + first["width"]
    saved = looker.page.locator(".figure", has_text="saved in parallel").locator("strong")
    assert await saved.inner_text() not in ("–", "0 s")


async def test_arrow_keys_select_timeline_items_and_the_panel_shows_details(
    looker: Looker, run: str
) -> None:
    await looker.enter("runs", run)
    await expect(looker.page.locator(".tl-bar").first).to_be_visible()
    await looker.page.locator(".tl").focus()
    panel = looker.page.locator("#detail")
    await looker.page.keyboard.press("Home")
    await expect(panel.get_by_role("heading", name="Turn 1")).to_be_visible()
    await looker.page.keyboard.press("ArrowRight")

    await expect(panel.get_by_role("heading", name="Call edge_call")).to_be_visible()
    await expect(panel.locator(".receipt")).to_contain_text("valid")
    for said in ("ran on", "local", "isolation", f"{run}.1.0.1", "here", "signed by", "counter"):
        await expect(panel).to_contain_text(said)
    for _ in range(3):
        await looker.page.keyboard.press("ArrowRight")
    await expect(panel.get_by_text("rule:whole-system")).to_be_visible()
    await expect(panel.get_by_text("never ran")).to_be_visible()
    focused = "document.activeElement.getAttribute('aria-label')"
    assert "call bash on local denied" in str(await looker.page.evaluate(focused))


async def test_a_run_is_rated_on_its_page_once_it_has_ended(looker: Looker) -> None:
    house, page = looker.house, looker.page
    run = await start_run(house.client, "wait rating 40")
    await looker.enter("runs", run)
    rating = page.get_by_role("group", name="Rating")
    await expect(looker.button("Stop")).to_be_visible()
    await expect(rating).to_have_count(0)
    house.up.models.gates["rating"].set()
    await expect(rating).to_be_visible()

    await rating.get_by_role("button", name="Rate as bad").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Cancel").click()
    assert (await house.client.get(f"/v1/runs/{run}/rating")).status == 404
    await rating.get_by_role("button", name="Rate as bad").click()
    await dialog.get_by_role("button", name="Rate as bad").click()

    pressed = rating.get_by_role("button", pressed=True)
    await expect(pressed).to_have_attribute("title", "Rated as bad")
    await looker.enter("runs", run)
    await expect(pressed).to_have_accessible_name("Rate as bad")
    assert await looker.barriers() == []


async def test_the_timeline_zooms_with_keys_and_wheel_and_resets(looker: Looker, run: str) -> None:
    await looker.enter("runs", run)
    timeline = looker.page.locator(".tl")
    await expect(looker.page.locator(".tl-bar").first).to_be_visible()
    wide = "one => one.scrollWidth / one.clientWidth"
    await timeline.focus()
    await looker.page.keyboard.press("+")
    assert await timeline.evaluate(wide) == pytest.approx(1.6, rel=0.1)
    turned = {"deltaY": -300, "ctrlKey": True, "clientX": 600, "cancelable": True}
    await timeline.dispatch_event("wheel", turned)
    assert await timeline.evaluate(wide) == pytest.approx(4.3, rel=0.1)
    await looker.page.keyboard.press("0")
    assert await timeline.evaluate(wide) == 1
    await looker.page.locator(".tl-jump select").select_option(label="2")
    await expect(looker.page.locator("#detail-title")).to_have_text("Turn 2")


async def test_the_record_slider_shows_the_run_at_an_earlier_record(
    looker: Looker, run: str
) -> None:
    await looker.enter("runs", run)
    scrubber = looker.page.get_by_role("slider", name="Record")
    calls = looker.page.locator(".figure", has_text="calls").locator("strong")
    await expect(calls).to_have_text("3")
    records = int(await scrubber.input_value())

    await scrubber.fill("3")
    await expect(calls).to_have_text("0")
    await expect(looker.page.locator(".run-state")).to_contain_text("running")
    await expect(looker.page.locator(".tl-bar")).to_have_count(0)
    await scrubber.press("ArrowRight")
    assert await scrubber.input_value() == "4"
    await looker.page.get_by_label("Speed").select_option("max")
    await scrubber.press(" ")
    await expect(looker.page.locator(".run-state")).to_contain_text("completed")
    assert int(await scrubber.input_value()) == records


async def test_a_recording_is_downloaded_and_its_replay_checked(
    looker: Looker, run: str, tmp_path: Path
) -> None:
    await looker.enter("runs", run)
    async with looker.page.expect_download() as waited:
        await looker.button("Download").click()
    kept = tmp_path / "run.jsonl"
    await (await waited.value).save_as(kept)
    lines: list[JSON] = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))

    await looker.button("Check replay").click()
    same = f"Replayed {len(lines)} records, all identical byte for byte."
    await expect(looker.page.get_by_role("dialog")).to_contain_text(same)


async def test_a_run_is_forked_from_a_turn(looker: Looker, run: str) -> None:
    await looker.enter("runs", run)
    await looker.button("Fork…").click()
    dialog = looker.page.get_by_role("dialog")
    await dialog.get_by_label("Turn to run again").select_option("1")
    await dialog.get_by_label("New message").fill("say otherwise")
    await dialog.get_by_role("button", name="Fork").click()

    await expect(looker.page.locator(".run-asked")).to_have_text("say otherwise")
    await expect(looker.page.locator(".run-state")).to_contain_text("completed")
    assert run not in looker.page.url


async def test_two_runs_are_compared_turn_by_turn(looker: Looker, house: House, run: str) -> None:
    other = await _ended(house, f"{SIDE_BY_SIDE}\nsay another end")
    await looker.enter("runs")
    for one in (run, other):
        await looker.page.locator(f'input[data-run="{one}"]').check()
    await looker.button("Compare").click()

    await expect(looker.page.get_by_role("heading", name="Turn 2")).to_be_visible()
    await expect(looker.page.locator(".tl")).to_have_count(2)
    await expect(looker.page.get_by_text("another end").last).to_be_visible()
    assert await looker.barriers() == []


async def test_a_live_run_is_followed_and_stopped(looker: Looker, house: House) -> None:
    run = await start_run(house.client, _on("local", "echo line 1; sleep 20"))
    await looker.enter("runs", run)
    await looker.page.get_by_role("button", name="call edge_call on local running").click()
    await expect(looker.page.get_by_label("output so far")).to_have_text("line 1\n")
    await looker.button("■ Stop").click()

    await expect(looker.page.locator(".run-state")).to_contain_text("cancelled")
    await expect(looker.button("■ Stop")).to_be_hidden()


async def test_parent_and_child_runs_link_to_each_other(looker: Looker, house: House) -> None:
    run = await _ended(house, 'call task {"prompt":"say from below"}\nsay heard')
    await looker.enter("runs", run)
    await looker.page.get_by_role("link", name="say from below").click()
    await expect(looker.page.locator(".run-asked")).to_have_text("say from below")

    await looker.page.get_by_role("link", name=f"run {run[:8]}").click()
    await expect(looker.page.locator(".run-asked")).to_contain_text("call task")


async def test_tool_output_is_shown_as_plain_text(looker: Looker, house: House) -> None:
    markup = "<img src=x onerror=alert(1)>"
    run = await _ended(house, _on("local", f"echo '{markup}'; printf '\\033[31mred'") + "\nsay ok")
    await looker.enter("runs", run)
    await looker.page.get_by_role("button", name="call edge_call on local succeeded").click()

    await expect(looker.page.get_by_label("result", exact=True)).to_contain_text(markup)
    assert "\x1b" not in await looker.page.locator("#detail").inner_text()
    await expect(looker.page.locator("main img")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_run_view_is_accessible_and_fits_a_phone(
    looker: Looker, run: str, scheme: str
) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await looker.enter("runs", run)
    await looker.page.locator(".tl-bar.failed").click()
    await expect(looker.page.get_by_text("signed by")).to_be_visible()
    assert await looker.barriers() == []

    await looker.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0


async def test_seeking_records_in_any_order_gives_the_same_state(
    looker: Looker, house: House, run: str
) -> None:
    text = (await house.client.get(f"/v1/runs/{run}/records")).body.decode()
    await looker.enter("runs", run)

    assert await looker.page.evaluate(_DIFFERING, text) == []


_DIFFERING = """async (text) => {
  const { Recording, RunModel } = await import("/ui/views/run/model.js");
  const lines = text.split("\\n").filter(Boolean).map((line) => JSON.parse(line));
  const recording = new Recording();
  for (let again = 0; again < 60; again += 1) { // long enough for copies to be kept
    for (const record of lines) {
      const whole = structuredClone(record);
      whole.seq = again * lines.length + record.seq;
      const { event } = whole, name = (id) => `${again} ${id}`;
      if (event.call_id) event.call_id = name(event.call_id);
      if (event.result) event.result.call_id = name(event.result.call_id);
      for (const call of event.reply?.calls || []) call.id = name(call.id);
      recording.add(whole);
    }
  }
  const plain = (run) => JSON.stringify({ ...run, index: 0 },
    (key, value) => (key === "gen" ? undefined : value));
  const { records } = recording, wrong = [];
  for (const count of [700, 1, 501, 500, 499, 900, 1000, 3, records.length, 0]) {
    const fresh = new RunModel();
    for (const record of records.slice(0, count)) fresh.fold(record);
    if (plain(fresh) !== plain(recording.at(count))) wrong.push(count);
  }
  return wrong;
}"""
"""The moments of a long run that come out otherwise than if they were folded from the start."""


async def test_a_run_of_ten_thousand_records_is_seekable_and_renders_few_rows(
    looker: Looker, house: House
) -> None:
    run = await _ended(house, "words 10000")
    await looker.enter("runs", run)
    scrubber = looker.page.get_by_role("slider", name="Record")
    await expect(scrubber).to_have_attribute("max", "10005")
    await looker.page.get_by_label("Show").select_option("all")
    rows = looker.page.locator(".event")
    await expect(rows.last).to_be_visible()
    assert await rows.count() < 60

    await scrubber.fill("5000")
    await expect(looker.page.locator(".event.here .event-number")).to_have_text("5000")
    spent: JSON = await looker.page.evaluate(_SPENT)
    assert spent["same"]
    assert spent["folds"] <= 500


_SPENT = """async () => {
  const { Recording, RunModel } = await import("/ui/views/run/model.js");
  const recording = new Recording();
  recording.add({ seq: 1, at: 0, event: { type: "run_started", model: "m", messages: [] } });
  recording.add({ seq: 2, at: 0, event: { type: "turn_started", turn: 1 } });
  for (let seq = 3; seq <= 10000; seq += 1) {
    recording.add({ seq, at: seq, event: { type: "text_delta", text: `${seq} ` } });
  }
  let folds = 0;
  const fold = RunModel.prototype.fold;
  RunModel.prototype.fold = function (record) { folds += 1; return fold.call(this, record); };
  const model = recording.at(7777);
  RunModel.prototype.fold = fold;
  const end = recording.model.turns[0].text.endsWith("10000 ");
  return { folds, same: end && model.turns[0].text.endsWith(" 7777 ") };
}"""
"""How many records are folded to go to one in the midst of many."""
