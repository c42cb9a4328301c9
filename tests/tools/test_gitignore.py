from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.executors.files import LocalFiles
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.gitignore import GitignoreMatcher, GitignoreRules, walk_unignored
from tests.support.properties import examples

pytestmark = pytest.mark.process

TREE = """\
a.log b.txt build/out.o build/keep/me.txt debug/log.txt deep/a/b/c.txt deep/build/x docs/a.md
docs/api/b.md docs/api/deep/c.md foo/bar/baz.c foo/baz.c hello.c important.log logs/debug.log
logs/latest/foo.bar nested/.hidden nested/keep.log nested/sub/x.tmp nested/sub/y.txt src/main.c
src/main.o src/[x].c src/x.c trailing#hash !bang sp\\ ace.txt UPPER.LOG a-b.c a5.c aZ.c
"""


def files() -> list[str]:
    return [name.replace("\\ ", " ") for name in TREE.replace("\\ ", "\\\\ ").split()] + [
        "with space.txt",
        "ends in space ",
    ]


def repository(root: Path, rules: dict[str, str]) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name in files():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for name, text in rules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())


def git_says(root: Path) -> set[str]:
    """The files that git neither tracks nor ignores."""
    command = ["git", "-C", str(root), "-c", "core.excludesFile=/dev/null"]
    listing = subprocess.run(
        [*command, "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    return {name for name in listing.stdout.decode().split("\0") if name}


async def we_say(root: Path) -> set[str]:
    ops = LocalFiles(root)
    return {
        entry.path
        async for entry in walk_unignored(ops, ".", GitignoreMatcher(ops, "."))
        if entry is not None and entry.kind != "dir"
    }


RULES: list[dict[str, str]] = [
    {".gitignore": "*.log\n!important.log\n"},
    {".gitignore": "build/\n"},
    {".gitignore": "/build\n"},
    {".gitignore": "build\n!build/keep\n"},
    {".gitignore": "build/*\n!build/keep\n"},
    {".gitignore": "docs/**\n!docs/api\n!docs/api/**\n"},
    {".gitignore": "docs/**/c.md\n**/x\nfoo/**/baz.c\n"},
    {".gitignore": "**/logs\n"},
    {".gitignore": "**/logs/debug.log\nlogs/**/foo.bar\n"},
    {".gitignore": "logs/*.log\nfoo/*\n!foo/bar\n"},
    {".gitignore": "# comment\n\\#x\ntrailing#hash\n\\!bang\n"},
    {".gitignore": "with space.txt   \nends in space\\ \n"},
    {".gitignore": "a[0-9].c\nsrc/[[]x].c\n[!a-z]5.c\n"},
    {".gitignore": "a[[:upper:]].c\na[^5Z].c\n"},
    {".gitignore": "src/\\[x\\].c\nhell?.c\n"},
    {".gitignore": "[\nsrc/[x\nbad\\\n*.o\n"},
    {".gitignore": "*\n!*/\n!*.md\n"},
    {".gitignore": "\ufeff*.c\r\n!hello.c\r\n"},
    {".gitignore": "/\n//\n\n   \n*.c\n"},
    {".gitignore": "***.log\nfoo**bar\n**foo\ndeep/***/c.txt\n"},
    {".gitignore": "deep/\n", "deep/.gitignore": "!a\n"},
    {"nested/.gitignore": "*.tmp\n/keep.log\n", ".gitignore": "*.txt\n!nested/sub/y.txt\n"},
    {"nested/.gitignore": "!*.log\n", ".gitignore": "*.log\n"},
    {"nested/sub/.gitignore": "*\n", "logs/.gitignore": "/latest/\n"},
    {".gitignore": "[a-[z-a].log\n[a-A]5.c\n"},
    {".gitignore": "[.-0]ain.c\nsrc[/]main.c\n"},
    {".git/info/exclude": "*.md\n*.c\n", ".gitignore": "!docs/a.md\n"},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: repr(rules)[:60])
async def test_gitignore_rules_ignore_the_same_files_as_git(
    tmp_path: Path, rules: dict[str, str]
) -> None:
    repository(tmp_path, rules)

    assert await we_say(tmp_path) == git_says(tmp_path)


PATTERNS = st.lists(
    st.text(alphabet="*?/!ab.c[]-\\ o", min_size=1, max_size=8), min_size=1, max_size=4
)


@settings(max_examples=examples(60), deadline=None)
@given(lines=PATTERNS)
def test_random_gitignore_rules_ignore_the_same_files_as_git(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "random"
    if not root.exists():
        repository(root, {})
    (root / ".gitignore").write_text("\n".join(lines) + "\n")
    paths = [name for name in files() if "/" not in name]
    asked = subprocess.run(
        ["git", "-C", str(root), "-c", "core.excludesFile=/dev/null", "check-ignore"]
        + ["--no-index", "-z", "--stdin"],
        input="\0".join(paths).encode(),
        capture_output=True,
        check=False,
    )
    rules = GitignoreRules((root / ".gitignore").read_bytes())

    ours = {path for path in paths if rules.is_ignored(path.encode(), folder=False)}

    assert ours == {name for name in asked.stdout.decode().split("\0") if name}


async def test_ignored_folders_are_not_entered(tmp_path: Path) -> None:
    repository(tmp_path, {".gitignore": "build/\n"})
    ops = LocalFiles(tmp_path)

    seen = [entry async for entry in walk_unignored(ops, ".", GitignoreMatcher(ops, "."))]

    # `.git`, `build` and `deep/build`: one entry each, nothing of what is in them.
    assert seen.count(None) == 3


async def test_a_walk_without_skip_ignores_the_same_files() -> None:
    ops = FakeOps({".gitignore": "build/\n", "build/a/b": "x", "src/a": "x"})

    found = [
        entry.path async for entry in walk_unignored(ops, ".", GitignoreMatcher(ops, ".")) if entry
    ]

    assert found == [".gitignore", "src", "src/a"]


async def test_an_ignored_folder_is_searched_when_named_explicitly() -> None:
    ops = FakeOps({".gitignore": "build/\n*.o\n", "build/a": "x", "build/b.o": "x"})

    found = [
        entry.path
        async for entry in walk_unignored(ops, "build", GitignoreMatcher(ops, "build"))
        if entry
    ]

    assert found == ["build/a"]
