"""Files in the chat: chosen, dropped and pasted, shown as chips, sent, and shown again."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image
from playwright.async_api import FilePayload, expect

from tests.page.looking import Looker

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


def picture(width: int = 40) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, 200), "red").save(file, "PNG")
    return file.getvalue()


def file(name: str, data: bytes, media_type: str = "application/octet-stream") -> FilePayload:
    return {"name": name, "mimeType": media_type, "buffer": data}


async def choose(looker: Looker, *files: FilePayload) -> None:
    async with looker.page.expect_file_chooser() as chosen:
        await looker.button("Attach").click()
    await (await chosen.value).set_files(list(files))


async def say(looker: Looker, text: str) -> None:
    box = looker.page.get_by_label("Message")
    await box.fill(text)
    await box.press("Enter")


DROP = """([selector, bytes]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([new Uint8Array(bytes)], "photo.png", { type: "image/png" }));
  const options = { dataTransfer, bubbles: true, cancelable: true };
  document.querySelector(selector).dispatchEvent(new DragEvent("drop", options));
}"""


async def test_a_picture_that_is_dropped_on_the_input_is_sent_with_the_message(
    looker: Looker,
) -> None:
    await looker.enter("chat")
    page = looker.page
    await page.get_by_label("Agent").select_option("careful")
    await page.evaluate(DROP, ["form.composer", list(picture(3000))])
    await expect(page.get_by_alt_text("photo.png")).to_be_visible()
    await say(looker, "say a red line")

    log = page.get_by_role("log")
    await expect(log).to_contain_text("a red line")
    await expect(log.get_by_alt_text("attached image")).to_be_visible()
    await expect(page.get_by_alt_text("photo.png")).to_be_hidden()
    (asked,) = [one for one in looker.house.up.models.asked if one.said == "say a red line"]
    (image,) = [
        part["image_url"]["url"]
        for message in asked.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    assert Image.open(BytesIO(b64decode(image.partition(",")[2]))).size[0] == 1568
    await page.reload()
    await expect(log.get_by_alt_text("attached image")).to_be_visible()


async def test_chosen_files_are_chips_with_their_size_and_can_be_removed(looker: Looker) -> None:
    await looker.enter("chat")
    chips = looker.page.get_by_role("list", name="Attached files").get_by_role("listitem")
    await choose(
        looker,
        file("notes.txt", b"one\ntwo\n", "text/plain"),
        file("a.png", picture(), "image/png"),
    )
    await expect(chips).to_have_count(2)
    await expect(chips.nth(0)).to_contain_text("notes.txt 8 B")
    await expect(chips.nth(1).get_by_alt_text("a.png")).to_be_visible()
    await expect(chips.nth(1)).to_contain_text("a.png")

    await looker.button("Remove a.png").click()
    await expect(chips).to_have_count(1)
    assert await looker.barriers() == []


async def test_a_text_file_is_sent_and_shown_again_when_the_session_is_reopened(
    looker: Looker,
) -> None:
    await looker.enter("chat")
    tricky = "first line\n~~~~\n\nlast ~~~~~ line"
    await choose(looker, file("pump log.txt", tricky.encode(), "text/plain"))
    await say(looker, "say I read the log")
    log = looker.page.get_by_role("log")
    await expect(log).to_contain_text("I read the log")

    (asked,) = [
        one for one in looker.house.up.models.asked if one.said.startswith("say I read the log")
    ]
    assert f"Attached file: pump log.txt\n~~~~~~\n{tricky}\n~~~~~~" in asked.said
    for reopened in (False, True):
        if reopened:
            await looker.page.reload()
        bubble = log.locator(".bubble")
        await expect(bubble.locator(".as-typed")).to_have_text("say I read the log")
        await bubble.get_by_text("pump log.txt (").click()
        await expect(bubble.get_by_label("the file pump log.txt")).to_have_text(tricky)
    await expect(looker.page.get_by_role("list", name="Attached files")).to_be_hidden()


PASTE = """(text) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([text], "pasted.md", { type: "text/markdown" }));
  const options = { clipboardData, bubbles: true, cancelable: true };
  document.querySelector("#composer").dispatchEvent(new ClipboardEvent("paste", options));
}"""


async def test_a_file_is_pasted_and_limits_are_explained(looker: Looker) -> None:
    await looker.enter("chat")
    chips = looker.page.get_by_role("list", name="Attached files").get_by_role("listitem")
    problem = looker.page.locator(".composer [role=alert]")
    await looker.page.evaluate(PASTE, "# pasted")
    await expect(chips).to_have_text(["pasted.md 8 BRemove"])

    for name, data, words in (
        ("big.log", b"x" * 100_001, "“big.log” is too large (100.0 kB); a text file"),
        ("tool.bin", b"\x00\xff\xfe", "“tool.bin” is neither a picture nor a text file."),
    ):
        await choose(looker, file(name, data))
        await expect(problem).to_contain_text(words)
        await expect(problem).to_contain_text("Copy it to a machine, and write its path instead.")
    await choose(looker, file("torn.png", b"no picture", "image/png"))
    await expect(problem).to_contain_text("“torn.png” cannot be sent as a picture.")

    await choose(looker, *(file(f"{n}.txt", b"a") for n in range(8)))
    await expect(problem).to_contain_text("A message can have at most 8 files.")
    await expect(chips).to_have_count(8)


async def test_a_picture_without_words_asks_for_them(looker: Looker) -> None:
    await looker.enter("chat")
    await choose(looker, file("a.png", picture(), "image/png"))
    await expect(looker.page.get_by_alt_text("a.png")).to_be_visible()
    await looker.button("Send").click()

    await expect(looker.page.locator(".composer [role=alert]")).to_have_text(
        "Write a message to go with the picture."
    )
