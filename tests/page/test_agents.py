"""Agents in the dashboard: listed, created, edited, run and deleted; the next run shows it."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.page.house import House
from tests.page.looking import PHONE, Looker
from tests.support.up_process import ok, start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


def editor(page: Page, what: str) -> Locator:
    return page.get_by_label(f"Definition of {what}")


async def change(page: Page, what: str, old: str, new: str) -> None:
    """Replace a part of a text, as typing would."""
    area = editor(page, what)
    text = await area.input_value()
    assert old in text, text
    await area.fill(text.replace(old, new))


def system_prompt(house: House, said: str) -> str:
    body = next(asked.body for asked in reversed(house.up.models.asked) if asked.said == said)
    return str(body["messages"][0]["content"])


async def create(looker: Looker, name: str) -> None:
    await looker.enter("agents")
    await looker.button("New agent").click()
    await looker.page.get_by_label("Name of the new agent").fill(name)
    await looker.button("Continue").click()
    await change(looker.page, f"agent {name}", 'prompt = ""', 'prompt = "Answer like a cook."')
    await looker.button("Save").click()
    await expect(looker.page.get_by_role("heading", name=name, exact=True)).to_be_visible()


async def test_an_agent_is_created_run_edited_and_deleted_and_each_takes_effect(
    looker: Looker,
) -> None:
    page, house = looker.page, looker.house
    settings = house.up.home / "evoclaw.toml"
    before = settings.read_text()
    await create(looker, "cook")

    await page.get_by_label("Message to cook").fill("say soup")
    await looker.button("Run").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Chat")
    await expect(page.locator(".talk")).to_contain_text("soup")
    assert "Answer like a cook." in system_prompt(house, "say soup")

    await looker.go("agents", "cook")
    history = page.get_by_role("table", name="runs of cook")
    await expect(history).to_contain_text("completed")
    await expect(history.get_by_role("link", name="open")).to_be_visible()
    await change(page, "agent cook", "like a cook.", "like a baker.")
    await change(
        page, "agent cook", "[agents.limits]", 'model = "vllm/qwen3-other"\n\n[agents.limits]'
    )
    await looker.button("Save").click()
    await expect(page.get_by_text("New runs use it")).to_be_visible()
    await expect(page.locator(".facts")).to_contain_text("vllm/qwen3-other")
    run = await start_run(house.client, "say bread", agent="cook")
    await wait_for_state(house.client, run)
    assert "Answer like a baker." in system_prompt(house, "say bread")
    assert house.up.models.asked[-1].body["model"] == "qwen3-other"
    await expect(history).to_contain_text("say bread")
    assert settings.read_text().startswith(before.rstrip())  # the rest of the file stays

    loaded = await looker.hold_back("**/v1/agents/cook/definition")
    await page.reload()
    await looker.button("Delete agent cook").click()
    loaded.set()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("table", name="agents")).to_be_visible()
    await expect(page.get_by_role("link", name="cook", exact=True)).to_have_count(0)
    gone = await house.client.post("/v1/runs", {"message": "say x", "agent": "cook"})
    assert gone.status == 404
    assert settings.read_text().strip() == before.strip()


async def test_an_invalid_agent_is_not_saved_and_the_line_is_selected(looker: Looker) -> None:
    page, settings = looker.page, looker.house.up.home / "evoclaw.toml"
    before = settings.read_text()
    await looker.enter("agents", "careful")
    await change(page, "agent careful", 'autonomy = "supervised"', 'autonomy = "often"')
    await looker.button("Check").click()

    problem = page.locator(".definition-problem")
    await expect(problem).to_contain_text("Line 4")
    await expect(problem).to_contain_text("allowed: read_only, supervised, full")
    await expect(problem.locator("code")).to_have_text("autonomy")
    area = editor(page, "agent careful")
    chosen = await area.evaluate("one => one.value.slice(one.selectionStart, one.selectionEnd)")
    assert chosen == 'autonomy = "often"'
    await looker.button("Save").click()
    await expect(problem).to_contain_text("Not saved")
    assert settings.read_text() == before
    assert await looker.barriers() == []
    looker.complaints.clear()  # the browser reports the refused requests


async def test_a_change_on_disk_meanwhile_is_not_overwritten(looker: Looker) -> None:
    page, settings = looker.page, looker.house.up.home / "evoclaw.toml"
    before = settings.read_text()
    await looker.enter("agents", "careful")
    await change(page, "agent careful", "supervised", "read_only")
    settings.write_text(before.replace('id = "careful"', 'id = "careful"  # of Ann'))
    try:
        await looker.button("Save").click()
        problem = page.locator(".definition-problem")
        await expect(problem).to_contain_text("has changed since you loaded it")
        await looker.button("Reload").click()
        await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        await expect(editor(page, "agent careful")).to_have_value(re.compile("# of Ann"))
    finally:
        settings.write_text(before)
    looker.complaints.clear()


async def test_the_built_in_agent_and_the_list_say_what_an_agent_may_do(looker: Looker) -> None:
    run = await start_run(looker.house.client, "say counted", agent="careful")
    await wait_for_state(looker.house.client, run)
    await looker.enter("agents")
    row = looker.page.get_by_role("row").filter(has_text="careful")
    await expect(row).to_contain_text("vllm/qwen2.5-vl-scripted")
    await expect(row).to_contain_text("all")
    await expect(row).to_contain_text("10 turns")
    number = int(await row.locator("td[data-title=Runs]").inner_text())
    run = await start_run(looker.house.client, "say again", agent="careful")
    await wait_for_state(looker.house.client, run)
    await expect(row.locator("td[data-title=Runs]")).to_have_text(str(number + 1))

    await row.get_by_role("link", name="careful").click()
    await looker.button("Test the model").click()
    await expect(looker.page.locator(".facts")).to_contain_text("answered in")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_one_agent_passes_axe_and_fits_a_phone(looker: Looker, scheme: str) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await looker.enter("agents", "careful")
    await expect(editor(looker.page, "agent careful")).to_be_visible()
    await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)

    assert await looker.barriers() == []
    await looker.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0


async def test_a_token_without_admin_sees_no_definition_and_no_button(
    house: House, context: BrowserContext
) -> None:
    scopes = ["agents:invoke", "runs:read", "workflows:read", "human"]
    made = ok(await house.client.post("/v1/tokens", {"name": "viewer", "scopes": scopes}))
    page = await context.new_page()
    await page.goto(f"{house.url}/#token={made['token']}")
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await page.evaluate("location.hash = '#/agents/careful'")
    await expect(page.get_by_text("You cannot see the definition")).to_be_visible()
    await expect(page.get_by_role("button", name="Delete agent careful")).to_have_count(0)
    await page.evaluate("location.hash = '#/agents'")
    await expect(page.get_by_role("table", name="agents")).to_be_visible()
    await expect(page.get_by_role("button", name="New agent")).to_have_count(0)
