"""`make icons`: the icons of the installed dashboard, drawn from `icon.svg` by Chromium."""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser

import evoclaw.dashboard
from tests.page.browsing import chromium

STATIC = Path(evoclaw.dashboard.__file__).parent / "static"
GROUND = "#0f5f6b"
"""Of the icon: it fills those that a system cuts to its own shape."""
ICONS = {
    "icon-192": (192, 1.0, ""),
    "icon-512": (512, 1.0, ""),
    "maskable-512": (512, 0.8, GROUND),
    "apple-touch-icon": (180, 0.9, GROUND),
}
"""By name: the size in pixels, how much of it the drawing takes, and the ground."""


async def draw(browser: Browser, name: str) -> None:
    """Write one icon."""
    size, share, ground = ICONS[name]
    drawing = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    side = round(size * share)
    page = await browser.new_page(viewport={"width": size, "height": size})
    await page.set_content(
        f"<body style='margin:0;height:{size}px;display:grid;place-items:center;"
        f"background:{ground or 'transparent'}'>"
        f"<img width={side} height={side} src='data:image/svg+xml;base64,{drawing}'>"
    )
    picture = await page.screenshot(omit_background=True)
    await page.close()
    Image.open(io.BytesIO(picture)).save(STATIC / "icons" / f"{name}.png", optimize=True)


async def main() -> None:
    """Write all icons."""
    (STATIC / "icons").mkdir(exist_ok=True)
    async with chromium() as browser:
        for name in ICONS:
            await draw(browser, name)


if __name__ == "__main__":
    asyncio.run(main())
