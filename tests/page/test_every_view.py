"""What holds for every view: it opens, fits a phone, and anybody can use it."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.page.house import House
from tests.page.looking import PHONE, VIEWS, Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


async def settled(page: Page) -> None:
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_passes_the_axe_accessibility_check(
    looker: Looker, view: str, scheme: str
) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await looker.enter(view)
    await settled(looker.page)

    assert await looker.barriers() == []


@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_fits_a_phone_screen(looker: Looker, view: str) -> None:
    await looker.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    await looker.enter(view)
    await settled(looker.page)

    await expect(looker.page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
    assert await looker.overflow() <= 0


async def test_keyboard_shortcuts_open_views_with_visible_focus(looker: Looker) -> None:
    await looker.enter("chat")
    await looker.page.evaluate("document.activeElement.blur()")
    for key, view in (("f", "fleet"), ("m", "metrics"), ("u", "audit"), ("a", "approvals")):
        await looker.page.keyboard.press("g")
        await looker.page.keyboard.press(key)
        await expect(looker.page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
    await looker.page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await looker.page.evaluate(outline) != "none"


async def test_login_refuses_a_wrong_token_and_accepts_a_valid_one(
    house: House, context: BrowserContext
) -> None:
    page = await context.new_page()
    await page.goto(house.url)
    await page.get_by_label("Token").fill("ec_nobody_has_this")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_text("This token is not valid.")).to_be_visible()

    await page.get_by_label("Token").fill(house.link.partition("token=")[2])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Chat")


async def test_a_login_link_leaves_no_token_in_the_url(looker: Looker) -> None:
    await looker.enter("fleet")

    assert "token" not in looker.page.url
    await looker.page.reload()
    await expect(looker.page.get_by_role("heading", level=1)).to_have_text("Fleet")
    await looker.button("Log out").click()
    await expect(looker.page.get_by_label("Token")).to_be_visible()
    assert await looker.page.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_a_hidden_tab_closes_its_event_stream(looker: Looker) -> None:
    await looker.enter("runs")
    streams: list[str] = []
    looker.page.on("requestfailed", lambda request: streams.append(request.url))
    hide = (
        "value => { Object.defineProperty(document, 'hidden', { value, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    async with looker.page.expect_event("requestfailed"):
        await looker.page.evaluate(hide, True)
    assert [url for url in streams if url.endswith("/v1/events")]

    run = await start_run(looker.house.client, "say meanwhile in the dark")
    await wait_for_state(looker.house.client, run)
    await looker.page.evaluate(hide, False)
    await expect(looker.page.get_by_text("say meanwhile in the dark")).to_be_visible()
