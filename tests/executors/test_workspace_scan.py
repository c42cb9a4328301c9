"""A later scan of a workspace finds what a first scan would find, and looks at less."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError
from evoclaw.executors.workspace import scan as scan_module
from evoclaw.executors.workspace.guard import WorkspaceGuard
from evoclaw.executors.workspace.snapshot import WorkspaceSnapshot
from tests.support.properties import examples

HOUR_NS = 3_600_000_000_000
CLOCK_REALTIME_COARSE = 5
"""Of Linux: the clock of change times, which ticks every few milliseconds."""


def in_an_hour() -> int:
    return time.time_ns() + HOUR_NS


def set_clock(
    patch: pytest.MonkeyPatch,
    time_ns: Callable[[], int] = in_an_hour,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Give the scanner another clock; an hour later, folders count as unchanged for long."""
    clock = SimpleNamespace(time_ns=time_ns, monotonic=monotonic)
    patch.setattr(scan_module, "time", clock)


def wait_for_the_next_change_time() -> None:
    """Some kernels give all changes of a few milliseconds the same change time."""
    now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    deadline = time.monotonic() + 5
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) == now:
        assert time.monotonic() < deadline


FOLDERS = (
    *("a", "b", "a/a", "a/b", "a/.git", ".git", "a/.vscode", ".git/hooks", "a/b/refs"),
    *("a/b/objects", ".git/modules", ".git/modules/x", "b/.config", "b/.config/git"),
    *("a/b/src", "a/b/src/.vscode", "a/b/hooks"),
)
FILES = ("HEAD", ".envrc", "config", "commondir", "post-checkout", "plain", ".git", "agent.toml")
PATHS = st.sampled_from(("", *FOLDERS))

UNMAKE = ("no repository", "a/b", "HEAD")
STEPS = st.one_of(
    st.tuples(st.just("folder"), st.sampled_from(FOLDERS), st.just("")),
    st.tuples(st.just("file"), PATHS, st.sampled_from(FILES)),
    st.tuples(st.just("link"), PATHS, st.sampled_from(FILES)),
    st.tuples(st.just("repository"), PATHS, st.just("")),
    st.tuples(st.just("no repository"), PATHS, st.just("HEAD")),
    st.tuples(st.just("remove"), st.sampled_from(FOLDERS), st.just("")),
    st.tuples(st.just("move"), st.sampled_from(FOLDERS), st.sampled_from(FOLDERS)),
    st.tuples(st.just("swap"), st.sampled_from(FOLDERS), st.sampled_from(FOLDERS)),
)


def do(root: Path, step: tuple[str, str, str]) -> None:
    """One change of the workspace; nothing if it cannot be done."""
    what, first, second = step
    path, other = root / first, root / second
    with suppress(OSError):
        if what == "folder":
            path.mkdir(parents=True)
        elif what == "file":
            (path / second).write_text("[core]\n\tbare = false\n")
        elif what == "link":
            (path / second).symlink_to("not/there")
        elif what == "repository":
            for name in ("objects", "refs"):
                (path / name).mkdir(parents=True, exist_ok=True)
            (path / "HEAD").write_text("ref: refs/heads/main\n")
        elif what == "no repository":
            (path / second).unlink()
        elif what == "remove":
            shutil.rmtree(path)
        elif what == "move":
            path.rename(other)
        elif what == "swap":
            path.rename(root / "between")
            other.rename(path)
            (root / "between").rename(other)


def contents(found: WorkspaceSnapshot) -> object:
    return found.entries, found.repositories, found.folders, found.settings, found.unreadable


@settings(max_examples=examples(200), deadline=None)
@example(batches=[[("folder", "a/b/src/.vscode", "")], [("repository", "a/b", "")]])
@example(batches=[[("repository", "a/b", ""), ("folder", "a/b/src/.vscode", "")], [UNMAKE]])
@given(batches=st.lists(st.lists(STEPS, max_size=8), min_size=1, max_size=4))
def test_a_later_scan_finds_what_a_first_scan_finds(
    batches: list[list[tuple[str, str, str]]],
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        set_clock(patch)
        guard = WorkspaceGuard([place])
        guard.scan()
        for batch in batches:
            wait_for_the_next_change_time()
            for step in batch:
                do(Path(place), step)
            assert contents(guard.scan()) == contents(WorkspaceGuard([place]).scan())


def test_an_unchanged_folder_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "b/c"):
        (tmp_path / name).mkdir()
    listed: list[str] = []

    scandir = os.scandir

    def count(folder: int) -> object:
        listed.append(str(Path(f"/proc/self/fd/{folder}").readlink()))
        return scandir(folder)

    set_clock(monkeypatch)
    monkeypatch.setattr(os, "scandir", count)
    guard = WorkspaceGuard([str(tmp_path)])
    guard.scan()
    assert len(listed) == 4
    wait_for_the_next_change_time()
    (tmp_path / "b" / "c" / ".envrc").write_text("x")

    listed.clear()
    found = guard.scan()

    assert listed == [f"{tmp_path}/b/c"]
    assert list(found.entries) == [f"{tmp_path}/b/c/.envrc"]


def test_a_scan_stays_as_it_was_when_a_later_one_finds_more(tmp_path: Path) -> None:
    guard = WorkspaceGuard([str(tmp_path)])
    before = guard.scan()

    (tmp_path / "new").mkdir()

    assert f"{tmp_path}/new" in guard.scan().folders
    assert list(before.folders) == [str(tmp_path)]


def test_a_folder_swapped_while_it_is_read_does_not_hide_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "p" / "x").mkdir(parents=True)
    (tmp_path / "q" / "x").mkdir(parents=True)
    before = WorkspaceGuard([str(work)]).scan()
    (work / "p" / "x" / ".envrc").write_text("evil")
    reads = iter(("work", "p", "x"))

    def swap_at_x() -> int:
        """The clock is asked while a folder is read."""
        if next(reads, "") == "x":
            # As a running command may: above the folder, whose own change time stays the same.
            (work / "p").rename(tmp_path / "away")
            (tmp_path / "q").rename(work / "p")
        return in_an_hour()

    guard = WorkspaceGuard([str(work)])
    set_clock(monkeypatch, swap_at_x)
    guard.scan()
    assert (tmp_path / "away").exists()
    (work / "p").rename(tmp_path / "q")
    (tmp_path / "away").rename(work / "p")

    assert guard.planted(before, guard.scan(before), ()) == [f"{work}/p/x/.envrc"]


def test_a_workspace_with_too_many_folders_is_refused_until_it_has_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = WorkspaceGuard([str(tmp_path)])
    before = guard.scan(max_folders=5)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    (tmp_path / "f" / ".envrc").write_text("evil")

    assert guard.planted(before, guard.scan(before), ()) == [f"{tmp_path}/f/.envrc"]
    with pytest.raises(
        ConfigError, match=r"more than 5 folders.*Start EvoClaw in a project folder"
    ):
        guard.scan(max_folders=5)
    shutil.rmtree(tmp_path / "f")
    (tmp_path / "e").rmdir()
    with pytest.raises(ConfigError):
        # Not looked at again at once: the first part of a large workspace takes seconds.
        guard.scan(max_folders=5)
    later = time.monotonic() + scan_module.REFUSAL_RETENTION_S
    set_clock(monkeypatch, monotonic=lambda: later)
    assert len(guard.scan(max_folders=5).folders) == 5
