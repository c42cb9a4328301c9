"""Model files that an edge has are copied by other machines: verified, and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from evoclaw.edge.commands import QUICK_COMMANDS
from evoclaw.edge.device import UNSIGNED_COMMANDS
from evoclaw.providers.models.download import DownloadFailed
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.providers.models.pull import PulledModel, edge_source, pull
from evoclaw.providers.models.store import ModelStore
from tests.support.fleet import Fault, FleetHarness, open_fleet
from tests.support.gguf_files import gguf
from tests.support.waiting import until

CONTENT = gguf(filler=2_500_000)
DIGEST = sha256(CONTENT).hexdigest()


def unwatched(done: int, total: int) -> None:
    pass


@asynccontextmanager
async def fleet(folder: Path, content: bytes = CONTENT) -> AsyncGenerator[FleetHarness]:
    """A fleet whose edge has the file."""
    theirs = ModelStore(folder / "theirs")
    theirs.folder.mkdir()
    theirs.path(DIGEST).write_bytes(content)
    async with open_fleet(folder, start=False) as here:
        here.pi.find_model_file = theirs.find_file
        await here.pi.start()
        await here.wait_online("pi")
        yield here


async def copy(
    here: FleetHarness, store: ModelStore, what: str = f"sha256:{DIGEST}"
) -> PulledModel:
    source = edge_source(what, "pi")

    async def fetch(part: PartialFile) -> None:
        await here.orchestrator.fetch_model(
            "pi", part, source.sha256, size_bytes=source.size_bytes, progress=unwatched
        )

    return await pull(source, store, progress=unwatched, note=lambda _: None, fetch=fetch)


async def test_a_model_is_copied_in_chunks_verified_and_installed(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "ours")
    async with fleet(tmp_path) as here:
        done = await copy(here, store)
    assert (done.model.name, done.model.source) == (f"model-{DIGEST[:8]}", "edge:pi")
    assert done.model.path.read_bytes() == CONTENT
    assert not grown_journals(here)


def grown_journals(here: FleetHarness) -> list[Path]:
    """Files beside the journals that hold a chunk: there must be none."""
    return [path for path in here.folder.glob("*.db*") if path.stat().st_size > len(CONTENT) // 2]


async def test_an_interrupted_copy_resumes_where_it_stopped(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "ours")
    asked: list[int] = []
    async with fleet(tmp_path) as here:

        def note(topic: str, payload: bytes) -> Fault:
            if b'"model_chunk"' in payload:
                asked.append(msgspec.json.decode(payload)["payload"]["offset"])
            return Fault.NONE

        here.link.fault = note
        part = store.folder / f"{DIGEST}.part"
        task = asyncio.create_task(copy(here, store))
        await until(lambda: part.exists() and part.stat().st_size > 500_000)
        task.cancel()
        await asyncio.wait([task])
        have, before = part.stat().st_size, len(asked)
        assert 0 < have < len(CONTENT)
        done = await copy(here, store)
    assert asked[before] == have == done.resumed_bytes
    assert done.model.path.read_bytes() == CONTENT


async def test_a_file_with_another_content_is_deleted(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "ours")
    async with fleet(tmp_path, gguf(filler=99)) as here:
        with pytest.raises(
            DownloadFailed, match=rf"edge:pi is not .* not {DIGEST}; it was deleted"
        ):
            await copy(here, store)
    assert not list(store.folder.glob("*.part"))


async def test_an_edge_without_the_file_or_with_one_of_another_size_says_so(
    tmp_path: Path,
) -> None:
    store = ModelStore(tmp_path / "ours")
    async with fleet(tmp_path) as here:
        with pytest.raises(DownloadFailed, match="This edge has no model with the digest"):
            await copy(here, store, "qwen2.5-coder-0.5b")
        wrong = edge_source("qwen2.5-coder-0.5b", "pi").sha256
        (tmp_path / "theirs" / f"{wrong}.gguf").write_bytes(CONTENT)
        with pytest.raises(DownloadFailed, match="bytes, not 491,400,064"):
            await copy(here, store, "qwen2.5-coder-0.5b")
        for payload in ({}, {"sha256": "../x", "offset": 0, "length": 1}, {"sha256": DIGEST}):
            answer = await here.orchestrator.query("pi", "model_chunk", dict(payload))
            assert "cannot be read" in answer.error


def test_a_chunk_is_sent_to_an_orchestrator_with_a_grant_only() -> None:
    assert "model_chunk" in QUICK_COMMANDS.keys() - UNSIGNED_COMMANDS
