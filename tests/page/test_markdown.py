"""Markdown of models: every element of it, coloured code, streaming, and hostile text."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Request, expect

from tests.page.looking import Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]

TEXT = """# Report

*Slanted*, **heavy**, ~~gone~~ and `inline`.

| machine | disk |
|:--|--:|
| local | **61 %** |
| garden | 23 % |

1. first
   - inner one
   - inner two
2. second

- [x] built
- [ ] shipped

> quoted
> twice

---

See [the guide](https://example.org/guide), <https://plain.example/>
or [mail](mailto:ann@example.org).
![a chart](https://pictures.example/chart.png)

```python
def add(a, b):  # sums
    return "text" + 12
```

<b onclick="window.hacked = 1">not bold</b>
"""
RENDER = """async (text) => {
  const { written } = await import("/ui/markdown/writer.js");
  const place = document.body.appendChild(written(text));
  const shape = (node) => (node.nodeType === Node.TEXT_NODE ? node.data
    : { [node.localName]: [...node.childNodes].map(shape) });
  const found = [...place.childNodes].map(shape);
  place.remove();
  return found;
}"""


async def recited(looker: Looker, text: str, agent: str = "evoclaw") -> str:
    """A session in which the model answered with a text."""
    run = await start_run(looker.house.client, f"recite {json.dumps(text)}", agent=agent)
    view = await wait_for_state(looker.house.client, run)
    return str(view["session_id"])


async def test_every_markdown_element_of_an_answer_is_rendered(looker: Looker) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    looker.page.on("request", note)
    session = await recited(looker, TEXT)
    await looker.enter("chat", session)
    answer = looker.page.locator(".model .prose")

    await expect(answer.get_by_role("heading", name="Report")).to_be_visible()
    inline = {"em": "Slanted", "strong": "heavy", "s": "gone", "p > code": "inline"}
    for tag, words in inline.items():
        await expect(answer.locator(tag).first).to_have_text(words)
    table = answer.get_by_role("table")
    await expect(table.get_by_role("columnheader")).to_have_text(["machine", "disk"])
    await expect(table.get_by_role("cell")).to_have_text(["local", "61 %", "garden", "23 %"])
    assert "right" in str(await table.get_by_role("cell").nth(1).get_attribute("class"))
    await expect(answer.locator("ol > li")).to_have_count(2)
    await expect(answer.locator("ol > li > ul > li")).to_have_text(["inner one", "inner two"])
    await expect(answer.get_by_role("checkbox", name="done", exact=True)).to_be_checked()
    await expect(answer.get_by_role("checkbox", name="not done")).not_to_be_checked()
    await expect(answer.locator("blockquote")).to_contain_text("quoted")
    await expect(answer.locator("hr")).to_have_count(1)
    await expect(answer).to_contain_text('<b onclick="window.hacked = 1">not bold</b>')
    await expect(answer.locator("img, b")).to_have_count(0)
    assert [url for url in asked if not url.startswith(looker.house.url)] == []


async def test_links_show_their_target_and_open_without_a_referrer(looker: Looker) -> None:
    await looker.enter("chat", await recited(looker, TEXT))
    answer = looker.page.locator(".model .prose")

    links = answer.get_by_role("link")
    await expect(links).to_have_text(
        ["the guide", "https://plain.example/", "mail", "image: a chart"]
    )
    for link in await links.all():
        assert await link.get_attribute("rel") == "noopener noreferrer"
        assert await link.get_attribute("target") == "_blank"
        assert await link.get_attribute("title") == await link.get_attribute("href")
    for target in ("(example.org)", "(ann@example.org)", "(pictures.example)"):
        await expect(answer).to_contain_text(target)
    await expect(answer).not_to_contain_text("(plain.example)")


async def test_code_is_coloured_and_can_be_copied(looker: Looker) -> None:
    await looker.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await looker.enter("chat", await recited(looker, TEXT))
    block = looker.page.locator(".model .code")

    for kind, words in {
        "keyword": ["def", "return"],
        "function": ["add"],
        "string": ['"text"'],
        "number": ["12"],
        "comment": ["# sums"],
    }.items():
        await expect(block.locator(f".hl-{kind}")).to_have_text(words)
    await block.get_by_role("button", name="Copy the code").click()
    await expect(looker.page.get_by_text("copied").first).to_be_visible()
    copied = await looker.page.evaluate("navigator.clipboard.readText()")
    assert copied == 'def add(a, b):  # sums\n    return "text" + 12'


CODE = {
    "js": "const a = `x`; // why\n/* long\n */ f(1)",
    "ts": "interface A { b: string }",
    "bash": 'for x in "$HOME"; do echo ${x} # all\ndone',
    "json": '{"a": [1, true, "b"]}',
    "toml": '[table]\nkey = "value" # why',
    "yaml": "key: value\nlist:\n  - 'one' # why",
    "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new",
    "html": '<a href="x">it\'s</a> <!-- why -->',
    "css": "a { color: #fff; } /* why */",
    "sql": "SELECT name FROM t WHERE a = 'b' -- why",
    "rust": "fn main() { println!(\"{}\", 'a'); } // why",
    "go": "func main() { var a = `b` } // why",
    "c": "#include <stdio.h>\nint main(void) { return 0; } /* why */",
}


async def test_colouring_keeps_every_character_and_knows_the_languages(looker: Looker) -> None:
    await looker.enter("chat")
    found: dict[str, list[list[str]]] = await looker.page.evaluate(
        """async (codes) => {
          const { piecesOf } = await import("/ui/markdown/highlight.js");
          const { languageOf } = await import("/ui/markdown/languages.js");
          return Object.fromEntries(Object.entries(codes)
            .map(([name, code]) => [name, [...piecesOf(code, languageOf(name))]]));
        }""",
        CODE,
    )
    for name, pieces in found.items():
        assert "".join(text for _, text in pieces) == CODE[name]
    kinds = {name: {(kind, text) for kind, text in pieces} for name, pieces in found.items()}
    assert {("comment", "/* long\n */"), ("string", "`x`"), ("function", "f")} <= kinds["js"]
    assert ("keyword", "interface") in kinds["ts"]
    assert {("keyword", "done"), ("variable", "${x}"), ("comment", "# all")} <= kinds["bash"]
    assert {("property", '"a"'), ("string", '"b"'), ("number", "true")} <= kinds["json"]
    assert {("title", "[table]"), ("property", "key"), ("comment", "# why")} <= kinds["toml"]
    assert {("property", "list"), ("string", "'one'")} <= kinds["yaml"]
    assert {("removed", "-old"), ("added", "+new"), ("title", "--- a")} <= kinds["diff"]
    assert {("tag", "<a"), ("property", "href"), ("comment", "<!-- why -->")} <= kinds["html"]
    assert {("property", "color"), ("number", "#fff")} <= kinds["css"]
    assert {("keyword", "SELECT"), ("string", "'b'"), ("comment", "-- why")} <= kinds["sql"]
    assert {("function", "println"), ("string", "'a'")} <= kinds["rust"]
    assert {("keyword", "func"), ("string", "`b`")} <= kinds["go"]
    assert {("meta", "#include"), ("keyword", "int"), ("number", "0")} <= kinds["c"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_markdown_passes_the_axe_accessibility_check(looker: Looker, scheme: str) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    blocks = "\n\n".join(f"```{name}\n{code}\n```" for name, code in CODE.items())
    await looker.enter("chat", await recited(looker, f"{TEXT}\n\n{blocks}"))
    await expect(looker.page.locator(".model .code")).to_have_count(len(CODE) + 1)

    assert await looker.barriers() == []


async def test_markdown_fits_a_phone_screen(looker: Looker) -> None:
    await looker.page.set_viewport_size({"width": 390, "height": 844})
    wide = "| " + " | ".join(f"column number {n}" for n in range(12)) + " |\n" + "|-" * 12 + "|"
    await looker.enter("chat", await recited(looker, f"{TEXT}\n\n{wide}\n\n    {'x' * 300}"))
    await expect(looker.page.get_by_role("table")).to_have_count(2)

    assert await looker.overflow() <= 0
    log = "document.querySelector('.log').scrollWidth - document.querySelector('.log').clientWidth"
    assert await looker.page.evaluate(log) <= 0


async def test_a_streamed_text_draws_only_its_last_block_again(looker: Looker) -> None:
    await looker.enter("chat")
    kept, same, removed = await looker.page.evaluate(
        """async (text) => {
          const { Writer, written } = await import("/ui/markdown/writer.js");
          const place = document.createElement("div");
          const writer = new Writer(place);
          const parts = text.match(/[\\s\\S]{1,3}/g);
          let kept = true, removed = 0;
          const seen = new MutationObserver(() => {});
          seen.observe(place, { childList: true });
          for (const part of parts) {
            const before = [...place.children];
            writer.write(part);
            kept &&= before.slice(0, -1).every((one) => one.parentNode === place);
            removed = Math.max(removed, seen.takeRecords()
              .reduce((sum, one) => sum + one.removedNodes.length, 0));
          }
          writer.end();
          return [kept, place.innerHTML === written(text).innerHTML, removed];
        }""",
        TEXT,
    )
    assert kept and same
    assert removed <= 1


async def test_growing_code_keeps_its_element_and_is_coloured_at_its_end(looker: Looker) -> None:
    await looker.enter("chat")
    found = await looker.page.evaluate(
        """async () => {
          const { Writer } = await import("/ui/markdown/writer.js");
          const place = document.createElement("div");
          const writer = new Writer(place);
          const coloured = () => place.querySelectorAll(".hl-keyword").length;
          for (const piece of ["```p", "y\\n", "def a():\\n"]) writer.write(piece);
          const block = place.firstChild, label = block.querySelector("span").textContent;
          writer.write("    pass\\n");
          const growing = [place.firstChild === block, label, coloured()];
          writer.write("```\\n\\nand then");
          return [...growing, coloured(), place.querySelector("code").textContent];
        }"""
    )
    assert found == [True, "py", 0, 2, "def a():\n    pass"]


async def test_reasoning_is_markdown_while_it_is_written_and_when_it_is_whole(
    looker: Looker,
) -> None:
    await looker.enter("chat")
    found = await looker.page.evaluate(
        """async () => {
          const { Reply } = await import("/ui/views/chat/messages.js");
          const reply = new Reply("", {});
          const shown = () => reply.thinking.querySelector("details .prose").innerHTML;
          for (const piece of ["**so", "** be", " it"]) {
            reply.addThought(piece);
            reply.draw();
          }
          const streamed = shown();
          reply.whole({ text: "", reasoning: "**so** be it" }, 1);
          reply.draw();
          const whole = shown();
          reply.whole({ text: "", reasoning: "*else*" }, 1);
          return [streamed, whole, shown(), reply.thinking.querySelectorAll("details").length];
        }"""
    )
    so = "<p><strong>so</strong> be it</p>"
    assert found == [so, so, "<p><em>else</em></p>", 1]


async def test_a_streamed_text_knows_addresses_that_it_defines_later(looker: Looker) -> None:
    await looker.enter("chat")
    found = await looker.page.evaluate(
        """async () => {
          const { Writer } = await import("/ui/markdown/writer.js");
          const place = document.createElement("div");
          const writer = new Writer(place);
          for (const part of ["[a][1]\\n\\n", "- b\\n\\n", "[1]: https://example.org/\\n"]) {
            writer.write(part);
          }
          writer.end();
          return [place.querySelector("a").href, place.textContent.trim(), place.children.length];
        }"""
    )
    assert found == ["https://example.org/", "a (example.org)b", 2]


LINKS = [
    "[x](javascript:window.hacked=1)",
    "[x](JaVaScRiPt:window.hacked=1)",
    "[x](java\tscript:window.hacked=1)",
    "[x](&#106;avascript:window.hacked=1)",
    "[x](<java\nscript:window.hacked=1>)",
    "[x](data:text/html,<script>window.hacked=1</script>)",
    "[x](vbscript:1)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example)",
    "[x](/v1/tokens)",
    "[x](#token=ec_evil)",
    "[x](blob:1)",
    "![x](javascript:window.hacked=1)",
    "![x](data:image/svg+xml,<svg onload=window.hacked=1>)",
    "<javascript:window.hacked=1>",
    "[x]: javascript:window.hacked=1\n\n[x]",
]


@pytest.mark.parametrize("text", LINKS)
async def test_only_web_and_mail_addresses_become_links(looker: Looker, text: str) -> None:
    await looker.enter("chat")
    shown = json.dumps(await looker.page.evaluate(RENDER, text))

    assert '"a":' not in shown and '"img":' not in shown
    assert await looker.page.evaluate("window.hacked") is None


async def test_a_link_that_imitates_another_host_shows_the_real_one(looker: Looker) -> None:
    await looker.enter("chat")
    shown = json.dumps(
        await looker.page.evaluate(
            RENDER, "[https://bank.example](https://bank.example@evil.example/)"
        )
    )
    assert "(evil.example)" in shown


HOSTILE = [
    "[", "*", ">", "> ", "- ", "1. ", "`", "`a", "_a", "**a", "*a ", "![", "<", "\\\\", "|", "&",
    "~~a", "[a](", "[a](<b", "a@b.", "http://a ", "> a\n", "[a]: b\n", "a]", "<a ", "<!--", " ",
    "\n", "# ", "```\n", "\t", "a**b", "*_a", "__a_", "> - ", "- > ", "[^a]", "[\n", "* a\n",
    "|a|\n|-|\n", "a|b\n", "x", "=\n", "a\n",
]  # fmt: skip
SIZE = 100_000


async def test_100_kb_of_hostile_text_stays_fast(looker: Looker) -> None:
    await looker.enter("chat")
    table = "a|" * (SIZE // 4) + "\n" + "-|" * (SIZE // 4)
    deep = "\n".join(" " * (2 * n) + "- a" for n in range(300))
    brackets = "[a" * (SIZE // 3) + "]" * (SIZE // 3)
    mixed = ["~" * 9000 + "`", "`" * 2000 + "a" * 1999, f"- {' ' * 20_000}\u2028", table, deep]
    texts = [*(one * (SIZE // len(one)) for one in HOSTILE), *mixed, brackets]
    slow: list[list[object]] = await looker.page.evaluate(
        """async (texts) => {
          const { written } = await import("/ui/markdown/writer.js");
          const slow = [];
          for (const text of texts) {
            const began = performance.now();
            written(text);
            const spent = performance.now() - began;
            if (spent > 6000) slow.push([text.slice(0, 10), spent]);
            await new Promise((next) => setTimeout(next));
          }
          return slow;
        }""",
        texts,
    )
    assert slow == []


async def test_hostile_code_is_coloured_in_linear_time(looker: Looker) -> None:
    await looker.enter("chat")
    starts = ['"', "'", "`", "/*", "<", "<a ", "<!--", "${", "1e", "@a ", "--", "a:", "#", " "]
    slow: list[list[object]] = await looker.page.evaluate(
        """async ([names, starts]) => {
          const { highlighted } = await import("/ui/markdown/highlight.js");
          const slow = [];
          for (const name of names) {
            for (const start of starts) {
              const began = performance.now();
              highlighted(start.repeat(49_000 / start.length), name);
              const spent = performance.now() - began;
              if (spent > 6000) slow.push([name, start, spent]);
            }
          }
          return slow;
        }""",
        [[*CODE, "python"], starts],
    )
    assert slow == []


async def test_a_hostile_text_in_small_pieces_stays_fast_and_complete(looker: Looker) -> None:
    await looker.enter("chat")
    spent, complete = await looker.page.evaluate(
        """async () => {
          const { Writer } = await import("/ui/markdown/writer.js");
          const place = document.createElement("div");
          const writer = new Writer(place);
          const began = performance.now();
          const piece = "[*`>~a\\n- ".repeat(10);
          for (let i = 0; i < 1000; i += 1) writer.write(piece);
          writer.end();
          const letters = place.textContent.split("a").length - 1;
          return [performance.now() - began, letters];
        }"""
    )
    assert complete == 10_000
    assert spent < 20_000


async def test_quotes_that_are_nested_too_deep_keep_their_text(looker: Looker) -> None:
    await looker.enter("chat")
    shown = json.dumps(await looker.page.evaluate(RENDER, "> " * 60 + "the innermost words"))

    assert "the innermost words" in shown
