"""The page's files: what is given out, under which policy, and what they may not contain."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.testing import TestClient
from PIL import Image

import evoclaw.dashboard
from evoclaw.dashboard.static_files import dashboard_routes

STATIC = Path(evoclaw.dashboard.__file__).parent / "static"
VENDOR = STATIC / "vendor"
MARKDOWN_IT = "90b5ae14a729eae76e1d911b5088349b03c90fab2cda799634477627bf693fb0"
"""The SHA-256 of the vendored lexer, which only `make vendor` changes."""
NOT_SERVED = {".md", ".txt"}
FILES = sorted(
    path for path in STATIC.rglob("*") if path.is_file() and path.suffix not in NOT_SERVED
)
OWN_FILES = [path for path in FILES if VENDOR not in path.parents]
TEXTS = [path for path in OWN_FILES if path.suffix != ".png"]
SCRIPTS = [path for path in OWN_FILES if path.suffix == ".js"]
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


def test_the_dashboard_csp_allows_only_its_own_files(
    client: TestClient[Litestar],
) -> None:
    answer = client.get("/")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy and "*" not in policy


def test_static_files_are_served_with_content_type_and_etag(client: TestClient[Litestar]) -> None:
    kinds = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg",
        ".html": "text/html",
        ".png": "image/png",
        ".webmanifest": "application/manifest+json",
    }
    for path in FILES:
        answer = client.get(f"/ui/{shown(path)}")
        assert answer.content == path.read_bytes(), path
        assert answer.headers["content-type"].startswith(kinds[path.suffix])
        again = client.get(f"/ui/{shown(path)}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_only_the_page_of_push_notifications_may_register_a_worker(
    client: TestClient[Litestar],
) -> None:
    own, push = (
        client.get(path).headers["content-security-policy"] for path in ("/", "/ui/push.html")
    )

    assert push and own.startswith(push)
    assert "script-src 'self'" in push and "form-action 'none'" in push
    assert "require-trusted-types-for" in own.removeprefix(push)


def test_the_service_worker_is_registered_in_a_frame_and_may_serve_the_dashboard(
    client: TestClient[Litestar],
) -> None:
    policy = client.get("/ui/worker.html").headers["content-security-policy"]
    push = client.get("/ui/push.html").headers["content-security-policy"]

    assert policy == push.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
    assert client.get("/ui/worker.js").headers["service-worker-allowed"] == "/"
    allowed = [shown(path) for path in SCRIPTS if path.name != "worker.js"]
    for name in allowed:
        assert "service-worker-allowed" not in client.get(f"/ui/{name}").headers


def test_the_file_list_has_a_version_of_all_files_that_work_offline(
    client: TestClient[Litestar], tmp_path: Path
) -> None:
    listed = client.get("/ui/files.json").json()

    assert all(client.get(path).status_code == 200 for path in listed["files"])
    assert {"/", "/ui/app.js", "/ui/views/chat/chat.js", "/ui/styles.css"} <= set(listed["files"])
    assert not {"/ui/worker.js", "/ui/push.html", "/ui/frame.html"} & set(listed["files"])
    copy = tmp_path / "static"
    shutil.copytree(STATIC, copy)
    (copy / "views" / "chat" / "chat.css").write_text("/* changed */")
    with TestClient(Litestar(dashboard_routes(copy), openapi_config=None)) as changed:
        other = changed.get("/ui/files.json").json()
    assert other["files"] == listed["files"] and other["version"] != listed["version"]


def test_the_manifest_names_icons_of_the_sizes_that_it_says(client: TestClient[Litestar]) -> None:
    manifest = client.get("/ui/manifest.webmanifest").json()

    assert (manifest["display"], manifest["start_url"], manifest["scope"]) == (
        "standalone", "/", "/",
    )  # fmt: skip
    sizes = set[tuple[str, str]]()
    for icon in manifest["icons"]:
        answer = client.get(icon["src"])
        assert answer.headers["content-type"].startswith(icon["type"])
        if icon["type"] == "image/png":
            width, height = Image.open(io.BytesIO(answer.content)).size
            assert icon["sizes"] == f"{width}x{height}"
            sizes.add((icon["sizes"], icon.get("purpose", "any")))
    assert {("192x192", "any"), ("512x512", "any"), ("512x512", "maskable")} <= sizes


def test_the_canvas_frame_csp_blocks_all_connections(client: TestClient[Litestar]) -> None:
    policy = client.get("/ui/frame.html").headers["content-security-policy"]

    assert "default-src 'none'" in policy and "sandbox allow-scripts" in policy
    assert "connect-src" not in policy and "allow-same-origin" not in policy
    assert "frame-ancestors 'self'" in policy


@pytest.mark.parametrize(
    "name",
    ["nothing.js", "../files.py", "%2e%2e/files.py", "..%2ffiles.py", "views", "", "//etc/hosts"],
)
def test_unknown_static_paths_return_404(client: TestClient[Litestar], name: str) -> None:
    assert client.get(f"/ui/{name}").status_code == 404


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_scripts_use_no_html_injection_api(path: Path) -> None:
    found = MARKUP.search(path.read_text())

    assert found is None, found


def test_vendored_scripts_are_unchanged_and_come_with_their_licences(
    client: TestClient[Litestar],
) -> None:
    lexer = VENDOR / "markdown-it.js"
    version = lexer.read_text().split()[2].rstrip(",")

    assert sha256(lexer.read_bytes()).hexdigest() == MARKDOWN_IT, "run: make vendor"
    assert f"`markdown-it` {version}" in (VENDOR / "README.md").read_text()
    assert "== entities ==" in (VENDOR / "LICENSES.txt").read_text()
    assert client.get("/ui/vendor/README.md").status_code == 404


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_static_files_are_short_and_load_no_external_resource(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()

    assert len(lines) <= LONGEST_FILE
    if path.suffix == ".js":
        assert [n for n, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []
    found = ELSEWHERE.search(text.replace("http://www.w3.org/2000/svg", ""))
    assert found is None, found


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_script_imports_exist_and_are_exported(path: Path) -> None:
    names = r"import\s*(?:\{([^}]*)\}|(\* as \w+))?\s*(?:from\s*)?\"(\.[^\"]+)\""
    for listed, _, target in re.findall(names, path.read_text()):
        source = (path.parent / target).resolve()
        assert source.is_file(), f"{shown(path)} imports {target}"
        for name in filter(None, (one.split(" as ")[0].strip() for one in listed.split(","))):
            exported = rf"export (async )?(function|const|class|let) {name}\b"
            assert re.search(exported, source.read_text()), f"{target} exports no {name}"


def test_every_file_referenced_by_an_html_file_exists(client: TestClient[Litestar]) -> None:
    for path in STATIC.glob("*.html"):
        for name in re.findall(r"\"(/ui/[\w./-]+)\"", path.read_text()):
            assert client.get(name).status_code == 200, f"{path.name} refers to {name}"


def test_the_first_screen_loads_one_style_sheet_with_the_phone_layout_last(
    client: TestClient[Litestar],
) -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"rel=\"stylesheet\" href=\"([^\"]+)\"", text) == ["/ui/styles.css"]

    styles = client.get("/ui/styles.css").text
    for path in FILES:
        if path.suffix == ".css":
            assert path.read_text() in styles, f"{shown(path)} is missing"
    assert styles.startswith((STATIC / "style.css").read_text())
    assert styles.endswith((STATIC / "phone.css").read_text())


def test_the_modules_that_the_app_needs_are_preloaded(client: TestClient[Litestar]) -> None:
    needed, left = set[Path](), [STATIC / "app.js"]
    while left:
        path = left.pop()
        for target in re.findall(r"from \"(\.[^\"]+)\"", path.read_text()):
            found = (path.parent / target).resolve()
            if found not in needed:
                needed.add(found)
                left.append(found)
    text = (STATIC / "index.html").read_text()
    preloaded = re.findall(r"rel=\"modulepreload\" href=\"/ui/([^\"]+)\"", text)
    assert sorted(preloaded) == sorted(shown(path) for path in needed)


def test_texts_are_compressed_for_browsers_that_accept_it(client: TestClient[Litestar]) -> None:
    def size(name: str, accepts: str) -> tuple[str, int]:
        with client.stream("GET", name, headers={"accept-encoding": accepts}) as answer:
            raw = b"".join(answer.iter_raw())
            assert answer.headers["vary"] == "accept-encoding"
            return answer.headers.get("content-encoding", ""), len(raw)

    lexer = (VENDOR / "markdown-it.js").stat().st_size
    assert size("/ui/vendor/markdown-it.js", "identity") == ("", lexer)
    encoding, sent = size("/ui/vendor/markdown-it.js", "gzip, deflate, br")
    assert encoding == "gzip" and sent < lexer / 2
    icon = STATIC / "icons" / "icon-512.png"
    assert size("/ui/icons/icon-512.png", "gzip") == ("", icon.stat().st_size)
