"""The docs cannot go stale: their code runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from evoclaw.cli.main import command_line

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    (*ROOT.glob("*.md"), *DOCS.rglob("*.md")), key=lambda page: page.relative_to(ROOT).parts
)
RUNNABLE = (
    *(ROOT / "README.md", DOCS / "quickstart.md", DOCS / "coming-from.md"),
    *sorted((DOCS / "guides").glob("*.md")),
)
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").glob("*.py")
    if path.name not in ("demo.py", "ask_a_model.py")
)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: language and content, in order."""
    return _BLOCK.findall(read(page))


@pytest.mark.process
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_python_blocks_of_a_page_run_and_print_what_the_page_shows(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    printed: str | None = None
    ran = 0
    for language, content in blocks(page):
        if language == "python":
            exec(compile(content, name_of(page), "exec"), names)
            printed = capsys.readouterr().out
            ran += 1
        elif language == "text" and printed is not None:
            assert printed.rstrip() == content.rstrip()
        if language != "python":
            printed = None
    assert ran, "the page shows no code"


@pytest.mark.process
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs(
    example: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    runpy.run_path(str(example), run_name="__main__")

    assert capsys.readouterr().out.strip()


@pytest.mark.real_llm
def test_the_example_with_a_real_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOCLAW_MODEL", "local")
    Path("note.txt").write_text("The door code is 4711.\n")
    monkeypatch.setattr(sys, "argv", ["ask_a_model.py", "What does note.txt say?"])

    runpy.run_path(str(ROOT / "examples" / "ask_a_model.py"), run_name="__main__")

    assert "turns" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page: Path) -> None:
    text = _BLOCK.sub("", read(page))
    for target in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"{target} leads nowhere"
        assert aim.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            assert anchor in anchors(aim), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    """The headings of a page, as they are linked to."""
    text = _BLOCK.sub("", read(page))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in _HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_documented_command_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", read(ROOT / "Makefile"), re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            unknown = [word for word in words[1:] if "=" not in word and word not in targets]
            assert not unknown, f"make {' '.join(words[1:])}: no such target"
            continue
        at = whole_tree()
        for word in words[1:]:
            inner = commands_of(at)
            if not inner or word.startswith("-"):
                break
            # `evoclaw evolve AGENT` leaves a word out.
            name = word if word in inner else getattr(at.command, "implied", word)
            assert name in inner, f"{' '.join(words)}: no such command"
            at = click.Context(inner[name], parent=at, info_name=name)
        options = {option for param in at.command.get_params(at) for option in param.opts}
        strange = [word for word in words[1:] if word.startswith("--") and word not in options]
        assert not strange, f"{' '.join(words)}: no such option"


@cache
def whole_tree() -> click.Context:
    """The command line, from its root."""
    return click.Context(command_line, info_name="evoclaw", **command_line.context_settings)


def commands_of(at: click.Context) -> Mapping[str, click.Command]:
    if not isinstance(at.command, click.Group):
        return {}
    group = at.command
    # Old names are not listed, but work: an older entry of the changelog may name them.
    names = [*group.list_commands(at), *group.commands]
    found = {name: group.get_command(at, name) for name in names}
    return {name: command for name, command in found.items() if command is not None}


def commands(page: Path) -> Iterator[list[str]]:
    """What a page tells people to type, word by word: `evoclaw …` and `make …`."""
    text = read(page)
    shown = [content for language, content in blocks(page) if language in ("sh", "console")]
    lines = [line for content in shown for line in content.splitlines()]
    lines += _INLINE.findall(_BLOCK.sub("", text))
    for line in lines:
        command = line.removeprefix("$ ").strip()
        if command.startswith(("evoclaw ", "make ")) and " = " not in command:
            yield shlex.split(command, comments=True)


@pytest.fixture(scope="module")
def generate() -> Iterator[Any]:
    """The program that makes the reference."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look their module up.
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["generate"]


def test_the_generated_reference_is_current(generate: Any) -> None:
    made: dict[str, str] = generate.pages()
    stored = {name: read(DOCS / name) for name in made if (DOCS / name).exists()}

    assert stored == made, "run: make docs"
    assert {name_of(page) for page in (DOCS / "reference").iterdir()} <= {
        f"docs/{name}" for name in made
    }


def test_every_fault_has_a_test_or_a_reason(generate: Any) -> None:
    tests: dict[int, list[tuple[str, str]]] = generate.fault_tests()
    assert set(tests) == set(range(1, 71))
    with pytest.raises(ValueError, match="fault 4 needs a test called test_fault_04_"):
        generate.faults({number: found for number, found in tests.items() if number != 4})
    with pytest.raises(ValueError, match="does not have"):
        generate.faults({**tests, 71: [("tests/x.py", "test_fault_71_x")]})


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (target.partition("#")[0] for target in _LINK.findall(read(page)))
        waiting += [(page.parent / link).resolve() for link in links if link and "://" not in link]

    assert set(DOCS.rglob("*.md")) - reached == set()


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    text = read(ROOT / "mkdocs.yml")
    listed = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE)
    of_the_root = {"CHANGELOG.md", "AGENTS.md"}

    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert set(listed) == pages | of_the_root
    assert len(listed) == len(set(listed))


def test_agents_md_stays_short() -> None:
    assert len(read(ROOT / "AGENTS.md").splitlines()) <= 120


def test_the_readme_names_its_commands_and_has_short_lines() -> None:
    text = read(ROOT / "README.md")

    assert "make demo" in text and "make test" in text
    assert max(len(line) for line in text.splitlines()) <= 130
