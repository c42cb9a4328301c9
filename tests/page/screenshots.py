"""`make screenshots`: every view, light and dark, and some on a phone, as the pictures that the
documentation shows. `ARGS=evolution` takes those of the view Evolution only."""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.async_api import Browser, ViewportSize, expect

from tests.page.browsing import chromium
from tests.page.evolution_scene import AGENT, evolving_agent
from tests.page.house import House, page_house
from tests.page.looking import Looker
from tests.page.scene import HOW, NOTES, play, session_of
from tests.support.up_process import ok
from tests.support.waiting import until

PLACE = Path(__file__).parents[2] / "docs" / "images"
SIZES: dict[str, ViewportSize] = {
    "": {"width": 1440, "height": 900},
    "phone-": {"width": 390, "height": 844},
}
"""By the start of the name of a picture."""
TALL: ViewportSize = {"width": 1440, "height": 960}
"""To the end of the scores, and of the stages."""
ON_A_PHONE = ("chat", "approvals", "fleet", "run", "channels")
"""The views of which the documentation shows a phone, light only."""
COLOURS = 128
"""Of a picture: a page of text needs no more, and it stays small."""
Scheme = Literal["light", "dark"]


async def shoot(
    house: House,
    browser: Browser,
    views: dict[str, str],
    scheme: Scheme,
    device: str,
    size: ViewportSize | None = None,
) -> None:
    """Take a picture of each view."""
    context = await browser.new_context(
        viewport=size or SIZES[device],
        is_mobile=bool(device),
        has_touch=bool(device),
        device_scale_factor=2 if device else 1,
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    looker = Looker(house, await context.new_page())
    await looker.enter("runs")
    for name, address in views.items():
        await looker.go(*address.split("/"))
        await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)
        if name == "metrics":
            await looker.page.get_by_label("Period").select_option(label="last hour")
        if name == "run":
            await looker.page.get_by_role("button", name="edge_call").first.click()
        await looker.page.wait_for_timeout(1_200)
        keep(await looker.page.screenshot(), PLACE / f"{device}{name}-{scheme}.png")
    assert looker.complaints == [], looker.complaints
    await context.close()


def keep(picture: bytes, path: Path) -> None:
    """Write a picture with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


async def breathed(house: House) -> None:
    """Wait until both edges have said how their machines are."""

    async def so() -> bool:
        edges = ok(await house.client.get("/v1/fleet"))["items"]
        return all(edge.get("cpu_percent") for edge in edges)

    await until(so, 60, "both edges said how they are")


async def shoot_evolution() -> None:
    """Take the pictures of an agent that evolves, and of its candidate."""
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        async with evolving_agent(Path(folder)) as (house, number), chromium() as browser:
            views = {
                "evolution": f"evolution/{AGENT}",
                "candidate": f"evolution/{AGENT}/{number}",
            }
            await shoot(house, browser, views, "light", "", TALL)


async def main(chosen: str) -> None:
    """Build a house, play the scene, take the pictures."""
    PLACE.mkdir(exist_ok=True)
    await shoot_evolution()
    if chosen == "evolution":
        return
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        async with page_house(Path(folder)) as house, chromium() as browser:
            runs = await play(house)
            await breathed(house)
            views = {
                "fleet": "fleet",
                "chat": f"chat/{await session_of(house, runs[HOW])}",
                "runs": "runs",
                "agents": "agents",
                "workflows": "workflows",
                "run": f"runs/{runs[HOW]}",
                "compare": f"runs/{runs[HOW]}/compare/{runs[NOTES]}",
                "approvals": "approvals",
                "tools": "tools",
                "metrics": "metrics",
                "audit": "audit",
                "settings": "settings",
                "channels": "settings/channels",
            }
            for scheme in ("light", "dark"):
                await shoot(house, browser, views, scheme, "")
            phone = {name: views[name] for name in ON_A_PHONE}
            await shoot(house, browser, phone, "light", "phone-")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or [""]))
