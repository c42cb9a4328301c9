"""Big outputs: kept whole up to a limit, found by their content, read in parts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.calls.artifacts import (
    Artifact,
    ArtifactNotFound,
    ArtifactStore,
    Excerpt,
    GrepLine,
)
from evoclaw.store.databases.sqlite import StoreFull
from tests.support.stores import fill, open_descriptors, small_disk

WAIT = 20.0
LINES = b"".join(b"line %d\n" % number for number in range(1, 100_001))


def held(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def names_of(*artifacts: Artifact) -> list[str]:
    names = [artifact.handle.removeprefix("sha256:") for artifact in artifacts]
    return sorted(names + [f"{name}.json" for name in names])


async def test_artifacts_are_stored_under_their_sha256(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path / "deep" / "artifacts", clock=lambda: 100.0)
    artifact = await artifacts.put(LINES, "text/plain")
    handle = f"sha256:{sha256(LINES).hexdigest()}"
    assert artifact == Artifact(handle, len(LINES), len(LINES), "text/plain", 86_500.0)
    assert await artifacts.get(handle) == artifact
    assert await artifacts.read(handle, 7, 6) == b"line 2"
    assert await artifacts.read(handle, len(LINES) - 3, 100) == LINES[-3:]
    assert await artifacts.read(handle, len(LINES), 100) == b""
    assert len(await artifacts.read(handle, 0, 1 << 30)) == 1 << 20
    assert await artifacts.put(LINES, "text/plain") == artifact
    assert held(tmp_path / "deep" / "artifacts") == names_of(artifact)
    assert open_descriptors(tmp_path) == []


async def test_an_artifact_streamed_in_chunks_equals_one_stored_at_once(tmp_path: Path) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for start in range(0, len(LINES), 50_000):
            yield LINES[start : start + 50_000]

    artifacts = ArtifactStore(tmp_path, clock=lambda: 100.0)
    whole = await artifacts.put(LINES, "text/plain")
    assert await artifacts.put(trickle(), "text/plain") == whole
    assert await artifacts.put([LINES[:10], b"", LINES[10:]], "text/plain") == whole
    assert (await artifacts.put(b"", "text/plain")).size == 0


async def test_bytes_over_the_artifact_limit_are_counted_but_not_stored(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path, max_artifact_bytes=300_000)
    artifact = await artifacts.put((LINES[:100_000] for _ in range(10)), "text/plain")
    assert (artifact.size, artifact.kept) == (1_000_000, 300_000)
    kept = LINES[:100_000] * 3
    assert artifact.handle == f"sha256:{sha256(kept).hexdigest()}"
    excerpt = await artifacts.head_and_tail(artifact.handle, 1000)
    assert excerpt == Excerpt(kept[:1000], kept[-1000:], 298_000, 700_000)
    assert (tmp_path / artifact.handle.removeprefix("sha256:")).stat().st_size == 300_000


async def test_head_and_tail_of_a_small_artifact_is_the_whole_artifact(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    handle = (await artifacts.put(b"0123456789", "text/plain")).handle
    assert await artifacts.head_and_tail(handle, 5) == Excerpt(b"0123456789", b"", 0, 0)
    assert await artifacts.head_and_tail(handle, 4) == Excerpt(b"0123", b"6789", 2, 0)


@pytest.mark.parametrize(
    ("data", "lines", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 3, b""),
        (b"x" * 100_000, 1, b"x" * 65_536),
    ],
)
async def test_tail_returns_the_last_lines(
    tmp_path: Path, data: bytes, lines: int, expected: bytes
) -> None:
    artifacts = ArtifactStore(tmp_path)
    handle = (await artifacts.put(data, "text/plain")).handle
    assert await artifacts.tail(handle, lines) == expected


async def test_grep_returns_matching_lines_with_their_numbers(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    handle = (await artifacts.put(LINES, "text/plain")).handle
    found = await artifacts.grep(handle, "^line (77|99999)$")
    assert (found.lines, found.more) == (
        [GrepLine(77, b"line 77"), GrepLine(99_999, b"line 99999")],
        False,
    )
    found = await artifacts.grep(handle, "LINE 1", ignore_case=True, max_lines=3)
    assert ([line.number for line in found.lines], found.more) == ([1, 10, 11], True)
    found = await artifacts.grep(handle, "")
    assert (len(found.lines), found.more) == (200, True)
    found = await artifacts.grep(handle, "line", max_lines=10**6, max_bytes=70)
    assert (len(found.lines), found.more) == (11, True)
    assert (await artifacts.grep(handle, "nothing of the kind")).lines == []


@pytest.mark.parametrize(
    ("data", "pattern", "expected"),
    [
        (b"a\r\nb\r\n", "b$", [GrepLine(2, b"b")]),
        (b"a\n\nb", "$", [GrepLine(1, b"a"), GrepLine(2, b""), GrepLine(3, b"b")]),
        (b"a\nb\n", r"a\nb", []),
        ("ä\nö".encode(), "^.$", [GrepLine(1, "ä".encode()), GrepLine(2, "ö".encode())]),
        (b"\xff\xfe x\n", "x", [GrepLine(1, b"\xff\xfe x")]),
        (b"y" * 3_000_000 + b"x\nz", "x|z", [GrepLine(1, b"y" * 500), GrepLine(2, b"z")]),
    ],
)
async def test_grep_handles_crlf_empty_lines_invalid_utf8_and_long_lines(
    tmp_path: Path, data: bytes, pattern: str, expected: list[GrepLine]
) -> None:
    artifacts = ArtifactStore(tmp_path)
    handle = (await artifacts.put(data, "text/plain")).handle
    assert (await artifacts.grep(handle, pattern)).lines == expected


async def test_fault_44_grep_runs_in_linear_time_and_refuses_invalid_patterns(
    tmp_path: Path,
) -> None:
    artifacts = ArtifactStore(tmp_path)
    handle = (await artifacts.put(b"a" * 1_000_000 + b"!", "text/plain")).handle
    async with asyncio.timeout(WAIT):
        assert (await artifacts.grep(handle, "^(a+)+$")).lines == []
    for pattern in ("(", r"(a)\1", "\ud800"):
        with pytest.raises(ConfigError, match="not a regular expression"):
            await artifacts.grep(handle, pattern)


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "sha256:",
        "sha256:../../etc/passwd",
        "sha256:" + "../" * 21 + "a",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 64 + "\n",
        "sha256:" + "a" * 64 + ".json",
        "sha256:" + "٣" * 64,
        "md5:" + "a" * 64,
        "/etc/passwd",
    ],
)
async def test_a_malformed_artifact_handle_is_refused(tmp_path: Path, handle: str) -> None:
    artifacts = ArtifactStore(tmp_path)
    with pytest.raises(ArtifactNotFound, match="64 hexadecimal digits"):
        await artifacts.read(handle, 0, 10)
    with pytest.raises(ArtifactNotFound, match="64 hexadecimal digits"):
        await artifacts.get(handle)


async def test_an_expired_artifact_is_pruned_and_reported_as_expired(tmp_path: Path) -> None:
    now = 0.0
    artifacts = ArtifactStore(tmp_path, retention_s=10.0, clock=lambda: now)
    old = await artifacts.put(b"old", "text/plain")
    now = 5.0
    new = await artifacts.put(b"new", "text/plain")
    assert await artifacts.prune(9.0) == 0
    assert await artifacts.prune(10.0) == 1
    assert held(tmp_path) == names_of(new)
    for asked in (artifacts.get(old.handle), artifacts.read(old.handle, 0, 1)):
        with pytest.raises(ArtifactNotFound, match="expired"):
            await asked
    assert await ArtifactStore(tmp_path / "not yet").prune(0.0) == 0


async def test_old_partial_files_of_a_crash_are_pruned(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    whole = await artifacts.put(b"whole", "text/plain")
    for name in (".draft-old", "a" * 64, "b" * 64 + ".json", ".draft-new"):
        (tmp_path / name).write_bytes(b"half")
        if name != ".draft-new":
            os.utime(tmp_path / name, (0, 0))
    assert await artifacts.prune(0.0) == 0
    assert held(tmp_path) == [".draft-new", *names_of(whole)]


async def test_the_oldest_artifacts_are_deleted_to_make_room(tmp_path: Path) -> None:
    now = 0.0
    artifacts = ArtifactStore(
        tmp_path, max_artifact_bytes=400, max_total_bytes=1000, clock=lambda: now
    )
    put: list[Artifact] = []
    for number in range(4):
        now += 1
        put.append(await artifacts.put(b"%d" % number * 300, "text/plain"))
    assert held(tmp_path) == names_of(*put[1:])


@pytest.mark.process
async def test_fault_26_a_full_disk_leaves_no_partial_artifact(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        artifacts = ArtifactStore(disk / "artifacts")
        small = await artifacts.put(b"small", "text/plain")
        with pytest.raises(StoreFull):
            await artifacts.put(b"x" * 2_000_000, "text/plain")
        ballast = fill(disk)
        with pytest.raises(StoreFull):
            await artifacts.put(b"y", "text/plain")
        assert held(disk / "artifacts") == names_of(small)
        assert await artifacts.read(small.handle, 0, 5) == b"small"
        ballast.unlink()
        await artifacts.put(b"z", "text/plain")


async def test_a_cancelled_put_leaves_no_file(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield LINES
        began.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(ArtifactStore(tmp_path).put(endless(), "text/plain"))
    async with asyncio.timeout(WAIT):
        await began.wait()
        assert len(held(tmp_path)) == 1
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
    assert held(tmp_path) == []
    assert open_descriptors(tmp_path) == []


async def test_a_put_whose_source_fails_leaves_no_file(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield LINES
        raise EOFError

    with pytest.raises(EOFError):
        await ArtifactStore(tmp_path).put(broken(), "text/plain")
    assert held(tmp_path) == []


async def test_concurrent_puts_of_the_same_bytes_share_one_artifact(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path, clock=lambda: 0.0)
    put = await asyncio.gather(*(artifacts.put(LINES, "text/plain") for _ in range(8)))
    assert len({one.handle for one in put}) == 1
    assert held(tmp_path) == names_of(put[0])
