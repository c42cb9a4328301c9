"""Workflows in the dashboard: created, scheduled, run with inputs, answered, edited, deleted."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.page.house import House
from tests.page.looking import PHONE, Looker
from tests.page.test_agents import change, editor
from tests.support.up_process import ok

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
FLOW = """\
# asks before it greets
description = "Greets somebody, if it may."
output = "{{ steps.hello.output.text }}"

[inputs.who]
description = "whom"

[inputs.often]
type = "integer"
default = 1

[[steps]]
name = "sure"
kind = "approval"
message = "Greet {{ inputs.who }}?"

[[steps]]
name = "hello"
kind = "agent"
agent = "evoclaw"
message = "say hello {{ inputs.who }}"
"""


@dataclass
class FlowFile:
    """The file of the workflow `greet`."""

    path: Path

    def read(self) -> str:
        return self.path.read_text()

    def write(self, text: str) -> None:
        self.path.write_text(text)


@pytest_asyncio.fixture(loop_scope="session")
async def flow(house: House) -> AsyncGenerator[FlowFile]:
    folder = house.up.home / "workflows"
    folder.mkdir(exist_ok=True)
    file = FlowFile(folder / "greet.toml")
    file.write(FLOW)
    yield file
    file.path.unlink(missing_ok=True)


async def test_a_workflow_runs_with_inputs_and_continues_after_an_answer(
    looker: Looker, flow: FlowFile
) -> None:
    page = looker.page
    await looker.enter("workflows")
    row = page.get_by_role("row").filter(has_text="greet")
    await expect(row).to_contain_text("sure, hello")
    await row.get_by_role("link", name="greet").click()
    await page.get_by_label("who (required)").fill("Ann")
    await looker.button("Run").click()

    sure = page.get_by_role("listitem", name="step sure")
    await expect(sure).to_contain_text("Greet Ann?")
    await expect(sure).to_contain_text("waiting")
    hello = page.get_by_role("listitem", name="step hello")
    await expect(hello).to_contain_text("pending")
    assert await looker.barriers() == []
    await looker.button("Approve: sure").click()
    await expect(hello).to_contain_text("succeeded")
    await expect(page.get_by_label("output", exact=True)).to_have_text("hello Ann")
    await expect(hello.get_by_role("link", name="run", exact=True)).to_be_visible()

    await page.get_by_role("link", name="Workflow greet").click()
    history = page.get_by_role("table", name="runs of greet")
    await expect(history).to_contain_text("succeeded")
    await expect(history).to_contain_text("hello Ann")


async def test_a_waiting_run_is_opened_from_the_history_and_cancelled(
    looker: Looker, flow: FlowFile
) -> None:
    page = looker.page
    started = await looker.house.client.post("/v1/workflows/greet/runs", {"inputs": {"who": "Bob"}})
    assert started.status == 201, started.body
    await looker.enter("workflows", "greet")
    history = page.get_by_role("table", name="runs of greet")
    await history.get_by_role("row").filter(has_text="waiting").get_by_role("link").first.click()
    await expect(page.get_by_role("listitem", name="step sure")).to_contain_text("Greet Bob?")
    await looker.button("Cancel the workflow run").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    await expect(page.locator(".card .badge").first).to_contain_text("cancelled")


async def test_the_schedule_is_changed_and_the_file_keeps_its_comments(
    looker: Looker, flow: FlowFile
) -> None:
    page = looker.page
    await looker.enter("workflows", "greet")
    await expect(editor(page, "workflow greet")).to_have_value(FLOW)
    await page.get_by_label("Cron", exact=False).first.fill("0 7 * * 1-5")
    await page.get_by_label("Time zone for cron").fill("Europe/Berlin")
    await looker.button("Save the schedule").click()
    await expect(page.locator(".toast.bad")).to_contain_text("inputs are missing: who")
    await page.get_by_label("Inputs for each scheduled run").fill('{"who": "Ann"}')
    await looker.button("Save the schedule").click()
    await expect(page.get_by_text("0 7 * * 1-5 (Europe/Berlin), next")).to_be_visible()
    assert flow.read().startswith(FLOW)
    items = ok(await looker.house.client.get("/v1/workflows"))["items"]
    (shown,) = [one for one in items if one["name"] == "greet"]
    assert shown["next_at"] > 0 and shown["schedule"]["inputs"] == {"who": "Ann"}

    await page.get_by_label("Cron", exact=False).first.fill("0 99 * * *")
    await looker.button("Save the schedule").click()
    await expect(page.locator(".toast.bad", has_text="hour")).to_be_visible()
    await page.get_by_label("Cron", exact=False).first.fill("")
    await looker.button("Save the schedule").click()
    await expect(page.get_by_text("manual", exact=True)).to_be_visible()
    assert "schedule" not in flow.read()
    looker.complaints.clear()  # the browser reports the refused request


async def test_a_workflow_is_created_corrected_edited_and_deleted(looker: Looker) -> None:
    page, client = looker.page, looker.house.client
    await looker.enter("workflows")
    await looker.button("New workflow").click()
    await page.get_by_label("Name of the new workflow").fill("daily")
    await looker.button("Continue").click()
    await change(page, "workflow daily", 'kind = "agent"', 'kind = "agnt"')
    await page.get_by_role("button", name="Save", exact=True).click()
    problem = page.locator(".definition-problem")
    await expect(problem).to_contain_text(re.compile(r"Line \d+: .*did you mean 'agent'"))
    await change(page, "workflow daily", 'kind = "agnt"', 'kind = "agent"')
    await change(page, "workflow daily", "Summarise {{ inputs.what }}", "say {{ inputs.what }}")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("heading", name="daily", exact=True)).to_be_visible()

    await change(page, "workflow daily", 'default = "the news"', 'default = "the weather"')
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("New runs use it")).to_be_visible()
    await looker.button("Run").click()
    await expect(page.get_by_role("listitem", name="step ask")).to_contain_text("succeeded")
    runs = ok(await client.get("/v1/workflow-runs?name=daily"))["items"]
    assert runs[0]["inputs"] == {"what": "the weather"}

    await looker.go("workflows", "daily")
    await looker.button("Delete workflow daily").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".toast", has_text="Deleted workflow daily")).to_be_visible()
    await expect(page.get_by_role("link", name="daily", exact=True)).to_have_count(0)
    assert not (looker.house.up.home / "workflows" / "daily.toml").exists()
    looker.complaints.clear()


async def test_a_workflow_is_scheduled_and_deleted_although_its_definition_is_still_loading(
    looker: Looker, flow: FlowFile
) -> None:
    page = looker.page
    loaded = await looker.hold_back("**/v1/workflows/greet/definition")
    await looker.enter("workflows", "greet")
    await page.get_by_label("Cron", exact=False).first.fill("0 7 * * 1-5")
    await page.get_by_label("Inputs for each scheduled run").fill('{"who": "Ann"}')
    await looker.button("Save the schedule").click()
    loaded.set()
    await expect(page.get_by_text("0 7 * * 1-5")).to_be_visible()
    assert "schedule" in flow.read()

    loaded.clear()
    await page.reload()
    await looker.button("Delete workflow greet").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    loaded.set()
    await expect(page.locator(".toast", has_text="Deleted workflow greet")).to_be_visible()
    assert not flow.path.exists()


async def test_a_broken_file_is_shown_with_its_problem_and_corrected(
    looker: Looker, flow: FlowFile
) -> None:
    page = looker.page
    flow.write(FLOW.replace('kind = "approval"', 'kind = "aproval"'))
    await looker.enter("workflows")
    await expect(page.get_by_role("row").filter(has_text="greet")).to_contain_text("invalid")
    await looker.go("workflows", "greet")
    await expect(page.locator(".definition-problem")).to_contain_text("did you mean 'approval'?")
    await change(page, "workflow greet", "aproval", "approval")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("heading", name="Run", exact=True)).to_be_visible()
    assert flow.read() == FLOW


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_one_workflow_passes_axe_and_fits_a_phone(
    looker: Looker, flow: FlowFile, scheme: str
) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await looker.enter("workflows", "greet")
    await expect(editor(looker.page, "workflow greet")).to_be_visible()
    await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)

    assert await looker.barriers() == []
    await looker.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0
