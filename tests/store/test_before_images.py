"""Before-images: kept by content, encrypted, limited and deleted in time."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.store.databases.blob_cipher import BlobCipher

DIGEST = sha256(b"content").hexdigest()


def images(folder: Path, *, key: bytes = b"", now: float = 1_000_000.0, total: int = 10_000):
    return BeforeImages(
        folder / "undo",
        cipher=BlobCipher(key),
        max_total_bytes=total,
        retention_s=100,
        clock=lambda: now,
    )


async def test_the_same_content_is_stored_once_and_found_by_its_hash(tmp_path: Path) -> None:
    store = images(tmp_path)
    assert await store.keep(b"content") and await store.keep(b"content")
    assert await store.content(DIGEST) == b"content"
    assert len(list((tmp_path / "undo").iterdir())) == 1
    assert await store.content("0" * 64) is None


async def test_contents_and_changes_are_encrypted_if_there_is_a_key(tmp_path: Path) -> None:
    store = images(tmp_path, key=b"k" * 32)
    await store.keep(b"content")
    await store.put_call("run.1.0.1", b"changes")
    for path in (tmp_path / "undo").iterdir():
        assert b"content" not in path.read_bytes() and b"changes" not in path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
    assert await store.content(DIGEST) == b"content"
    assert await store.call("run.1.0.1") == b"changes"
    other = images(tmp_path, key=b"o" * 32)
    assert await other.content(DIGEST) is None and await other.call("run.1.0.1") is None


async def test_what_has_expired_is_not_given_and_is_deleted(tmp_path: Path) -> None:
    await images(tmp_path).keep(b"content")
    later = images(tmp_path, now=1_000_101.0)
    assert await later.content(DIGEST) is None
    assert await later.prune() == 1
    assert list((tmp_path / "undo").iterdir()) == []


async def test_keeping_a_content_again_prolongs_its_retention(tmp_path: Path) -> None:
    await images(tmp_path).keep(b"content")
    await images(tmp_path, now=1_000_050.0).keep(b"content")
    later = images(tmp_path, now=1_000_120.0)
    assert await later.prune() == 0
    assert await later.content(DIGEST) == b"content"


async def test_the_oldest_contents_make_room_for_new_ones(tmp_path: Path) -> None:
    await images(tmp_path, total=20).keep(b"content")
    newer = images(tmp_path, now=1_000_010.0, total=20)
    await newer.keep(b"x" * 15)
    assert await newer.content(DIGEST) is None
    assert await newer.content(sha256(b"x" * 15).hexdigest()) == b"x" * 15


async def test_a_damaged_content_is_not_given(tmp_path: Path) -> None:
    store = images(tmp_path)
    await store.keep(b"content")
    (file,) = (tmp_path / "undo").iterdir()
    file.write_bytes(b"other")
    assert await store.content(DIGEST) is None
