"""The page's files: what is given out, under which policy, and what they may not contain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.testing import TestClient

import evoclaw.dashboard
from evoclaw.dashboard.static_files import dashboard_routes

STATIC = Path(evoclaw.dashboard.__file__).parent / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
LONGEST_FILE, LONGEST_LINE = 400, 100
MARKUP = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|createContextualFragment|DOMParser"
    r"|eval|srcdoc\s*=)\b|document\.write|new Function|javascript:"
)
"""The ways by which a text could become markup or a script."""
ELSEWHERE = re.compile(r"(https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Litestar]]:
    with TestClient(Litestar(dashboard_routes(), openapi_config=None)) as client:
        yield client


def shown(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def test_the_page_comes_with_a_policy_that_lets_only_its_own_files_in(
    client: TestClient[Litestar],
) -> None:
    answer = client.get("/")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy and "*" not in policy


def test_every_file_is_given_out_as_what_it_is_and_not_twice(client: TestClient[Litestar]) -> None:
    kinds = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg",
        ".html": "text/html",
    }
    for path in FILES:
        answer = client.get(f"/ui/{shown(path)}")
        assert answer.content == path.read_bytes(), path
        assert answer.headers["content-type"].startswith(kinds[path.suffix])
        again = client.get(f"/ui/{shown(path)}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_frame_for_what_models_make_can_reach_nothing(client: TestClient[Litestar]) -> None:
    policy = client.get("/ui/frame.html").headers["content-security-policy"]

    assert "default-src 'none'" in policy and "sandbox allow-scripts" in policy
    assert "connect-src" not in policy and "allow-same-origin" not in policy
    assert "frame-ancestors 'self'" in policy


@pytest.mark.parametrize(
    "name",
    ["nothing.js", "../files.py", "%2e%2e/files.py", "..%2ffiles.py", "views", "", "//etc/hosts"],
)
def test_nothing_but_the_files_is_given_out(client: TestClient[Litestar], name: str) -> None:
    assert client.get(f"/ui/{name}").status_code == 404


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_no_script_can_turn_a_text_into_markup(path: Path) -> None:
    found = MARKUP.search(path.read_text())

    assert found is None, found


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_short_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()

    assert len(lines) <= LONGEST_FILE
    if path.suffix == ".js":
        assert [n for n, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []
    found = ELSEWHERE.search(text.replace("http://www.w3.org/2000/svg", ""))
    assert found is None, found


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_what_a_script_imports_is_there_and_exported(path: Path) -> None:
    names = r"import\s*(?:\{([^}]*)\}|(\* as \w+))?\s*(?:from\s*)?\"(\.[^\"]+)\""
    for listed, _, target in re.findall(names, path.read_text()):
        source = (path.parent / target).resolve()
        assert source.is_file(), f"{shown(path)} imports {target}"
        for name in filter(None, (one.split(" as ")[0].strip() for one in listed.split(","))):
            exported = rf"export (async )?(function|const|class|let) {name}\b"
            assert re.search(exported, source.read_text()), f"{target} exports no {name}"


def test_every_style_that_the_page_names_is_there() -> None:
    text = (STATIC / "index.html").read_text()

    assert all((STATIC / name).is_file() for name in re.findall(r"/ui/([\w./]+)\"", text))
