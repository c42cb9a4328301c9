"""The terminal recording of the README: made from real commands, small, and well-formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from docs.record import PICTURE, filmed, svg, transcript

MAX_PICTURE_BYTES = 300_000


@pytest.mark.slow
async def test_the_recording_shows_what_the_commands_print_today() -> None:
    drawn = svg(filmed(await transcript()))

    shown = " ".join(text for text in ElementTree.fromstring(drawn).itertext())
    assert "approved once" in shown
    assert "byte for byte the same" in shown
    assert "deny rule:keys-and-passwords" in shown
    assert "/home/you/.evoclaw" in shown and not re.search(r"/tmp/|/root", shown)


def test_the_stored_recording_is_light_and_can_be_read_by_every_browser() -> None:
    text = PICTURE.read_text(encoding="utf-8")

    assert len(text.encode()) < MAX_PICTURE_BYTES
    picture = ElementTree.fromstring(text)
    assert picture.tag.endswith("svg") and picture.get("viewBox")
    names = {element.get("id") for element in picture.iter() if element.get("id")}
    used = {str(element.get("href")) for element in picture.iter() if element.get("href")}
    assert used == {f"#{name}" for name in names}
    assert "prefers-reduced-motion" in text
