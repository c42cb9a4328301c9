"""The first steps of an empty service: marks that follow what really happens, until all is done."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Locator, expect

from tests.page.house import SETTINGS, House
from tests.page.looking import PHONE, Looker
from tests.support.command_line import Shell
from tests.support.up_process import up_process

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def empty_house(tmp_path: Path) -> AsyncGenerator[House]:
    """A service without a machine, of which nothing was asked yet."""
    async with up_process(tmp_path) as up:
        up.configure(SETTINGS)
        client = await up.start()
        place = tmp_path / "machine"
        for folder in (place, place / "home", place / "work"):
            folder.mkdir()
        house = House(up, client, Shell(place / "home", place / "work", dict(up.models.env)))
        try:
            yield house
        finally:
            if house.edge is not None:
                await house.kill_edge()


async def test_the_first_steps_are_done_one_by_one_and_then_disappear(
    empty_house: House, context: BrowserContext
) -> None:
    looker = Looker(empty_house, await context.new_page())
    page = looker.page
    await looker.enter("chat")
    steps = page.get_by_label("First steps")
    model, machine, question = (steps.get_by_role("listitem").nth(number) for number in range(3))
    for step in (model, machine, question):
        await expect(step).to_have_attribute("data-done", "false")
    assert await looker.barriers() == []

    await looker.button("Test the model").click()
    await expect(model).to_have_attribute("data-done", "true")
    await expect(model).to_contain_text("answered")
    assert empty_house.up.models.count("Say hello in one word.") == 1

    await steps.get_by_label("Name of the machine").fill("shed")
    await looker.button("Invite a machine").click()
    command = await steps.get_by_label("the command").inner_text()
    await page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0
    await page.set_viewport_size({"width": 1280, "height": 800})
    await join(empty_house, command)
    await expect(machine).to_have_attribute("data-done", "true")
    await expect(machine).to_contain_text("Online: shed")

    empty_house.up.models.scripts["What can you do on this machine?"] = "say I can read files."
    await looker.button("Use the example").click()
    await page.keyboard.press("Enter")
    await expect(page.locator(".talk")).to_contain_text("I can read files.")
    await looker.button("New session").click()
    await expect(page.get_by_text("Describe what you want done.")).to_be_visible()
    await expect(steps).to_have_count(0)

    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    await page.get_by_role("dialog").get_by_role("link", name="First steps").click()
    await expect(done(page.get_by_label("First steps"))).to_have_count(3)
    await page.get_by_label("Your question").fill("say from the settings")
    await looker.button("Ask").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Chat")
    await expect(page.locator(".talk")).to_contain_text("from the settings")
    assert looker.complaints == []


def done(steps: Locator) -> Locator:
    return steps.locator("[data-done=true]")


async def join(house: House, command: str) -> None:
    """Do what the first steps say, on a machine of its own."""
    joined = await house.second.type(*shlex.split(command)[1:], "--capabilities", "*")
    assert joined.code == 0, joined.err
    quiet = asyncio.subprocess.DEVNULL
    house.edge = await house.second.start(
        "edge", "--config", "agent.toml", stdout=quiet, stderr=quiet
    )


async def test_a_model_that_does_not_answer_is_reported_with_the_reason(
    empty_house: House, context: BrowserContext
) -> None:
    empty_house.up.models.scripts["Say hello in one word."] = "fail 401"
    looker = Looker(empty_house, await context.new_page())
    await looker.enter("settings", "start")
    model = looker.page.get_by_label("First steps").get_by_role("listitem").first
    await looker.button("Test the model").click()
    await expect(model).to_contain_text("not working")
    await expect(model).to_have_attribute("data-done", "false")
    del empty_house.up.models.scripts["Say hello in one word."]
    await looker.button("Test the model").click()
    await expect(model).to_have_attribute("data-done", "true")
