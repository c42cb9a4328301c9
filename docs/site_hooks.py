"""Hooks of the documentation site: pages and files outside docs/ that the docs link to.

On GitHub `../CHANGELOG.md` and `../../tests/core/test_loop.py` are links into the repository. The
site has a copy of each such file, so that it is complete without a server.
"""

# pyright: strict

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "AGENTS.md")
"""Pages of the root that are pages of the site."""
COPIES = "repository/"
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what the pages link to outside docs/."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in list(files.documentation_pages()):
        for part in FENCED.split(page.content_string)[::2]:
            for _, target, _ in LINK.findall(part):
                path = in_repository(target, page.src_uri)
                if path is None or not (copy := site_path(path)).startswith(COPIES):
                    continue
                if not files.get_file_from_path(copy):
                    content = text_of(ROOT / path)
                    files.append(File.generated(config, copy, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let each link lead to its place on the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        path = in_repository(match[2], here)
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(site_path(path), posixpath.dirname(here)) + match[3]

    parts = FENCED.split(markdown)
    return "".join(part if n % 2 else LINK.sub(moved, part) for n, part in enumerate(parts))


def in_repository(target: str, here: str) -> str | None:
    """The path in the repository that a link of a page leads to."""
    if "://" in target or target.startswith("mailto:"):
        return None
    folder = "" if here in PAGES else posixpath.join("docs", posixpath.dirname(here))
    return posixpath.normpath(posixpath.join(folder, target))


def site_path(path: str) -> str:
    """The path on the site; a copy of a file is text for a browser."""
    if path in PAGES:
        return path
    if path.startswith("docs/") and not path.endswith((".py", ".toml")):
        return path.removeprefix("docs/")
    return f"{COPIES}{path}.txt"


def text_of(path: Path) -> str:
    """What a copy shows: a file, or the names in a folder."""
    if path.is_dir():
        return "".join(f"{inner.name}\n" for inner in sorted(path.iterdir()))
    return path.read_text(encoding="utf-8")
