"""The dashboard on a phone of 390 pixels: everything is there, within reach, and large enough."""

from __future__ import annotations

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, ViewportSize, expect

from evoclaw.core.messages import JSON
from tests.page.conftest import LOOP, PATIENCE
from tests.page.house import House
from tests.page.looking import VIEWS, Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
PHONE: ViewportSize = {"width": 390, "height": 844}
MIN_TARGET_PX = 40
SECTIONS = ("pair", "channels", "notifications", "tokens", "budgets", "policy", "stops", "about")
SMALL_TARGETS = """least => [...document.querySelectorAll("button, select, textarea, summary, "
    + "nav a, label.check, input:not([type=checkbox], [type=radio])")]
  .filter((one) => one.checkVisibility() && !one.closest(".tl, .unseen") && one.id !== "skip")
  .map((one) => [one.tagName, one.textContent.slice(0, 30), one.getBoundingClientRect()])
  .filter(([, , { width, height }]) => width < least || height < least)
  .map(([tag, text, { width, height }]) => `${tag} ${text}: ${width} x ${height}`)"""
"""Except the marks of a timeline: its records are a list too."""


@pytest_asyncio.fixture(loop_scope=LOOP)
async def phone(house: House, browser: Browser) -> Looker:
    context = await browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True)
    context.set_default_timeout(PATIENCE)
    return Looker(house, await context.new_page())


async def check(phone: Looker) -> None:
    """The view is complete, fits, and is large enough to touch."""
    await expect(phone.page.locator("[aria-busy=true]")).to_have_count(0)
    assert await phone.overflow() <= 0
    assert (
        await phone.page.locator("main").evaluate("one => one.scrollWidth - one.clientWidth") <= 0
    )
    found: JSON = await phone.page.evaluate(SMALL_TARGETS, MIN_TARGET_PX)
    assert found == []


async def close(phone: Looker) -> None:
    assert phone.complaints == []
    await phone.page.context.close()


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_fits_a_phone_and_passes_axe_in_both_themes(phone: Looker, view: str) -> None:
    await phone.enter(view)
    await check(phone)
    for scheme in ("light", "dark"):
        await phone.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        assert await phone.barriers() == []
    await close(phone)


async def test_pages_of_one_item_fit_a_phone(phone: Looker, house: House) -> None:
    runs = [await start_run(house.client, f"say {number}") for number in ("one", "two")]
    for run in runs:
        await wait_for_state(house.client, run)
    await phone.enter("runs")
    views = [["runs", runs[0]], ["runs", runs[0], "compare", runs[1]], ["fleet", "garden"]]
    views += [
        ["tools", "bash"],
        ["evolution", "evoclaw"],
        ["fleet?show=map"],
        *(["settings", name] for name in SECTIONS),
    ]
    for view in views:
        await phone.go(*view)
        await check(phone)
    await close(phone)


async def test_every_view_is_reached_from_the_bottom_bar(phone: Looker) -> None:
    await phone.enter("chat")
    page = phone.page
    bar = page.get_by_role("navigation", name="Views")
    names = await bar.locator("a").evaluate_all("all => all.map((one) => one.dataset.view)")
    assert names == list(VIEWS)
    for view, title in VIEWS.items():
        link = bar.locator(f"a[data-view={view}]")
        if not await link.is_visible():
            await page.get_by_role("button", name="More").tap()
        await link.tap()
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
        await expect(page.get_by_role("button", name="More")).to_have_attribute(
            "aria-expanded", "false"
        )
    bottom: JSON = await bar.evaluate("one => one.getBoundingClientRect().bottom")
    assert bottom == PHONE["height"]
    await close(phone)


async def reaches(page: Page, height: int) -> bool:
    box = await page.get_by_role("button", name="Send").bounding_box()
    return box is not None and box["y"] + box["height"] <= height


async def test_the_message_input_stays_above_the_keyboard(phone: Looker) -> None:
    await phone.enter("chat")
    await phone.page.get_by_label("Message").tap()
    await phone.page.set_viewport_size({"width": PHONE["width"], "height": 480})
    assert await reaches(phone.page, 480)

    # A browser whose keyboard covers the page: only the visual viewport is smaller.
    await phone.page.evaluate(
        """() => {
          Object.defineProperty(visualViewport, "height", { value: 400, configurable: true });
          visualViewport.dispatchEvent(new Event("resize"));
        }"""
    )
    assert await reaches(phone.page, 400)
    await close(phone)


async def test_a_desktop_shows_all_views_and_no_button_for_more(looker: Looker) -> None:
    await looker.page.set_viewport_size({"width": 1440, "height": 900})
    await looker.enter("chat")

    for view in VIEWS:
        await expect(looker.page.locator(f"nav a[data-view={view}]")).to_be_visible()
    await expect(looker.page.get_by_role("button", name="More", exact=True)).to_be_hidden()
    assert await looker.overflow() <= 0
