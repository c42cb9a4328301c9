"""Model files are pushed to edges: only those that an edge accepts, verified, and resumed."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.commands import QUICK_COMMANDS
from evoclaw.edge.device import UNSIGNED_COMMANDS
from evoclaw.edge.model_receiver import DEFAULT_ACCEPTED_MODELS, MAX_PUSHES, ModelReceiver
from evoclaw.orchestrator.fleet.model_files import PushedModel, PushFailed, push_model
from evoclaw.providers.models.catalogue import catalogue
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.providers.models.pull import pull, pull_source
from evoclaw.providers.models.store import ModelStore, models_folder
from evoclaw.providers.registry import open_provider
from evoclaw.transport.wire import Outcome
from tests.support.disks import small_disk
from tests.support.fleet import Fault, FleetHarness, open_fleet
from tests.support.gguf_files import gguf
from tests.support.waiting import until

CONTENT = gguf(filler=2_500_000)
DIGEST = sha256(CONTENT).hexdigest()
OURS = (f"sha256:{DIGEST}",)
KNOWN = min((entry for entry in catalogue() if entry.hub), key=lambda entry: entry.size_bytes)
"""Of the catalogue; no package brings it."""


def unwatched(done: int, total: int) -> None:
    pass


@asynccontextmanager
async def fleet(
    folder: Path, accepted: Sequence[str] = OURS, *, idle_timeout_s: float = 60.0
) -> AsyncGenerator[FleetHarness]:
    """A fleet whose edge accepts some models."""
    async with open_fleet(folder, start=False) as here:
        await start(here, accepted, idle_timeout_s=idle_timeout_s)
        try:
            yield here
        finally:
            await receiver(here).close()


async def start(
    here: FleetHarness, accepted: Sequence[str] = OURS, *, idle_timeout_s: float = 60.0
) -> None:
    store = theirs(here.folder)
    here.pi.model_receiver = ModelReceiver(store, accepted, idle_timeout_s=idle_timeout_s)
    await here.pi.start()
    await here.wait_online("pi")


def receiver(here: FleetHarness) -> ModelReceiver:
    assert here.pi.model_receiver is not None
    return here.pi.model_receiver


def theirs(folder: Path) -> ModelStore:
    """The models of the edge's machine."""
    return ModelStore(models_folder({"EVOCLAW_HOME": str(folder / "theirs")}))


async def push(
    here: FleetHarness,
    content: bytes = CONTENT,
    *,
    digest: str = DIGEST,
    notes: list[str] | None = None,
) -> PushedModel:
    file = here.folder / f"{sha256(content).hexdigest()[:8]}.gguf"
    file.write_bytes(content)
    return await here.orchestrator.push_model(
        "pi",
        file,
        digest,
        name="Tiny One",
        progress=unwatched,
        note=([] if notes is None else notes).append,
    )


def hold_after(here: FleetHarness, offset: int) -> None:
    """Lose every chunk that begins later, so that a push stops there."""

    def fault(topic: str, payload: bytes) -> Fault:
        if b'"chunk"' not in payload:
            return Fault.NONE
        asked = msgspec.json.decode(payload)["payload"]
        return Fault.DROP if asked.get("offset", 0) > offset else Fault.NONE

    here.link.fault = fault


async def step(here: FleetHarness, action: str, **given: JSON) -> Outcome:
    payload: dict[str, JSON] = {"action": action, "sha256": DIGEST, **given}
    return await here.orchestrator.query("pi", "model_push", payload)


def chunk(offset: int, length: int = 1000, content: bytes = CONTENT) -> dict[str, JSON]:
    data = content[offset : offset + length]
    encoded = b64encode(data).decode()
    return {"offset": offset, "data": encoded, "data_sha256": sha256(data).hexdigest()}


async def test_a_model_is_pushed_in_chunks_verified_and_installed(tmp_path: Path) -> None:
    async with fleet(tmp_path) as here:
        done = await push(here)
        again = await push(here)
    assert done == PushedModel("tiny-one", was_installed=False)
    assert again == PushedModel("tiny-one", was_installed=True)
    model = theirs(tmp_path).named("tiny-one")
    assert model is not None
    assert (model.trust, model.source, model.sha256) == ("given", "the orchestrator", DIGEST)
    assert model.path.read_bytes() == CONTENT
    assert not list(theirs(tmp_path).folder.glob("*.part"))
    assert not grown_journals(tmp_path)


def grown_journals(folder: Path) -> list[Path]:
    """Files beside the journals that hold a chunk: there must be none."""
    return [path for path in folder.glob("*.db*") if path.stat().st_size > len(CONTENT) // 2]


async def test_an_edge_whose_settings_name_a_pushed_model_uses_it(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="install evoclaw[embedded]")
    async with fleet(tmp_path) as here:
        done = await push(here)
    env = {"EVOCLAW_HOME": str(tmp_path / "theirs")}
    async with open_provider(f"embedded/{done.name}", env) as provider:
        assert provider.model == "embedded/tiny-one"
        assert provider.profile.context_tokens > 0


async def test_an_edge_accepts_by_itself_only_what_its_catalogue_has(tmp_path: Path) -> None:
    other = catalogue()[0]
    async with fleet(tmp_path, DEFAULT_ACCEPTED_MODELS) as here:
        with pytest.raises(PushFailed, match=rf'not in the catalogue.*"sha256:{DIGEST}"'):
            await push(here)
        assert not (tmp_path / "theirs").exists()
        known = await step(here, "start", sha256=KNOWN.sha256, total_bytes=KNOWN.size_bytes)
        wrong = await step(here, "start", sha256=other.sha256, total_bytes=9)
    assert known.result == {"state": "receiving"}
    assert f"The file has 9 bytes, and {other.name} has {other.size_bytes:,}" in wrong.error


async def test_an_edge_that_accepts_nothing_refuses_what_its_catalogue_has(tmp_path: Path) -> None:
    async with fleet(tmp_path, ()) as here:
        refused = await step(here, "start", sha256=KNOWN.sha256, total_bytes=KNOWN.size_bytes)
    assert refused.error_type == "permission_denied"
    assert "Its owner can allow it" in refused.error


async def test_an_edge_that_accepts_any_model_still_verifies_it(tmp_path: Path) -> None:
    wrong, not_a_model = "0" * 64, b"not a model" * 9
    async with fleet(tmp_path, ("*",)) as here:
        with pytest.raises(PushFailed, match=rf"its SHA-256 is {DIGEST}, not 0+; it was deleted"):
            await push(here, digest=wrong)
        with pytest.raises(PushFailed, match="GGUF.* It was not installed"):
            await push(here, not_a_model, digest=sha256(not_a_model).hexdigest())
        assert not theirs(tmp_path).named("tiny-one")
        assert not list(theirs(tmp_path).folder.glob("*.part"))
        assert (await push(here)).name == "tiny-one"


async def test_what_was_installed_another_way_is_not_pushed_though_it_is_not_accepted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)
    store = theirs(tmp_path)
    source = pull_source(str(file), store, {}, sha256=DIGEST)
    await pull(source, store, progress=unwatched, note=lambda _: None)
    async with fleet(tmp_path, ()) as here:
        assert await push(here) == PushedModel("tiny", was_installed=True)


async def test_a_push_resumes_where_the_edge_or_the_orchestrator_was_killed(tmp_path: Path) -> None:
    part = theirs(tmp_path).folder / f"{DIGEST}.part"
    async with fleet(tmp_path) as here:
        hold_after(here, 1_000_000)
        task = asyncio.create_task(push(here))
        await until(lambda: part.exists() and part.stat().st_size > 500_000)
        task.cancel()
        await asyncio.wait([task])
        await here.restart()
        await here.wait_online("pi")
        await here.pi.crash()
        await receiver(here).close()
        have = part.stat().st_size
        assert 0 < have < len(CONTENT)
        await start(here)
        hold_after(here, len(CONTENT))
        done = await push(here)
    assert done.resumed_bytes == have
    assert theirs(tmp_path).path(DIGEST).read_bytes() == CONTENT


async def test_a_push_goes_on_with_an_edge_that_was_restarted_meanwhile(tmp_path: Path) -> None:
    part = theirs(tmp_path).folder / f"{DIGEST}.part"
    async with fleet(tmp_path) as here:
        hold_after(here, 1_000_000)
        task = asyncio.create_task(push(here))
        await until(lambda: part.exists() and part.stat().st_size > 500_000)
        await here.pi.crash()
        await receiver(here).close()
        await start(here)
        hold_after(here, len(CONTENT))
        done = await task
    assert not done.was_installed
    assert theirs(tmp_path).path(DIGEST).read_bytes() == CONTENT


async def test_lost_repeated_and_late_chunks_do_no_harm(tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    faults = (Fault.TWICE, Fault.LATER, Fault.DROP, Fault.NONE, Fault.TWICE)

    def disturb(topic: str, payload: bytes) -> Fault:
        return faults[next(numbers) % len(faults)] if b'"chunk"' in payload else Fault.NONE

    async with fleet(tmp_path) as here:
        here.link.fault = disturb
        here.pi.link.fault = lambda topic, payload: (
            Fault.TWICE if b'"receiving"' in payload else Fault.NONE
        )
        done = await push(here)
    assert not done.was_installed
    assert theirs(tmp_path).path(DIGEST).read_bytes() == CONTENT


async def test_a_chunk_is_written_once_and_only_where_the_file_ends(tmp_path: Path) -> None:
    async with fleet(tmp_path) as here:
        opened = await step(here, "start", total_bytes=len(CONTENT), name="tiny")
        early = await step(here, "chunk", **chunk(1000))
        first = await step(here, "chunk", **chunk(0))
        again = await step(here, "chunk", **chunk(0))
        overlapping = await step(here, "chunk", **chunk(500))
        part = theirs(tmp_path).folder / f"{DIGEST}.part"
        assert part.read_bytes() == CONTENT[:1500]
        damaged = await step(here, "chunk", **{**chunk(1500), "data_sha256": "0" * 64})
        beyond = await step(here, "chunk", **chunk(len(CONTENT) - 10, content=CONTENT + CONTENT))
        unreadable = await step(here, "chunk", offset=-1)
        unopened = await step(here, "chunk", **chunk(0), sha256="1" * 64)
        other_size = await step(here, "start", total_bytes=len(CONTENT) + 1)
        assert part.read_bytes() == CONTENT[:1500]
    assert opened.result == early.result == {"state": "receiving"}
    assert first.result == again.result == {"state": "receiving", "have_bytes": 1000}
    assert overlapping.result == {"state": "receiving", "have_bytes": 1500}
    assert "damaged in transit" in damaged.error
    assert "not a part of the file" in beyond.error
    assert "cannot be read" in unreadable.error
    assert "start it again" in unopened.error
    assert "another size" in other_size.error


async def test_two_pushes_of_one_model_at_once_install_it_once(tmp_path: Path) -> None:
    async with fleet(tmp_path) as here:
        done = await asyncio.gather(push(here), push(here))
    assert {model.name for model in done} == {"tiny-one"}
    assert theirs(tmp_path).path(DIGEST).read_bytes() == CONTENT


async def test_a_push_waits_for_a_pull_of_the_same_model_on_the_edges_machine(
    tmp_path: Path,
) -> None:
    store, notes = theirs(tmp_path), list[str]()
    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)
    pulling, finish = asyncio.Event(), asyncio.Event()

    async def fetch(part: PartialFile) -> None:
        pulling.set()
        await finish.wait()
        part.add(CONTENT)

    source = pull_source(str(file), store, {}, sha256=DIGEST)
    async with fleet(tmp_path) as here:
        theirs_first = asyncio.create_task(
            pull(source, store, progress=unwatched, note=lambda _: None, fetch=fetch)
        )
        await pulling.wait()
        task = asyncio.create_task(push(here, notes=notes))
        await until(lambda: notes)
        finish.set()
        await theirs_first
        assert await task == PushedModel("tiny", was_installed=True)
    assert "another command on the machine of the edge installs Tiny One" in notes[0]


async def test_a_push_that_stops_lets_others_install_the_model(tmp_path: Path) -> None:
    store = theirs(tmp_path)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)
    async with fleet(tmp_path, idle_timeout_s=0.05) as here:
        await step(here, "start", total_bytes=len(CONTENT))
        source = pull_source(str(file), store, {}, sha256=DIGEST)
        async with asyncio.timeout(30):
            await pull(source, store, progress=unwatched, note=lambda _: None)
        late = await step(here, "chunk", **chunk(0))
        done = await push(here)
    assert late.error_type == "conflict"
    assert done.was_installed


async def test_an_edge_receives_only_a_few_models_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, ("*",)) as here:
        for number in range(MAX_PUSHES):
            opened = await step(here, "start", total_bytes=9, sha256=f"{number:064x}")
            assert opened.result == {"state": "receiving"}
        with pytest.raises(PushFailed, match=f"already receives {MAX_PUSHES} models"):
            await push(here)


async def test_a_full_disk_of_the_edge_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "theirs", "2m"):
        async with fleet(tmp_path, DEFAULT_ACCEPTED_MODELS) as here:
            refused = await step(here, "start", sha256=KNOWN.sha256, total_bytes=KNOWN.size_bytes)
            again = await step(here, "status", sha256=KNOWN.sha256)
    assert refused.error_type == again.error_type == "resource"
    assert "too little space for the model" in refused.error


async def test_an_edge_that_stops_answering_ends_a_push_that_can_be_resumed(tmp_path: Path) -> None:
    async def no_answer(payload: dict[str, JSON]) -> Outcome:
        raise ToolFailure(ErrorKind.AGENT_OFFLINE, "Agent 'pi' did not answer within 30s.")

    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)
    with pytest.raises(PushFailed, match="did not answer within 30s. Run the same command again"):
        await push_model(
            no_answer,
            file,
            DIGEST,
            name="tiny",
            max_message_bytes=261_120,
            progress=unwatched,
            note=lambda _: None,
        )


def test_a_model_is_pushed_by_an_orchestrator_with_a_grant_only() -> None:
    assert "model_push" in QUICK_COMMANDS.keys() - UNSIGNED_COMMANDS


async def test_an_edge_that_does_not_know_the_command_is_too_old(tmp_path: Path) -> None:
    async with fleet(tmp_path) as here:

        def older(topic: str, payload: bytes) -> bytes:
            if b'"model_push"' not in payload:
                return payload
            message = msgspec.json.decode(payload)
            return msgspec.json.encode({**message, "command": "model_push_of_tomorrow"})

        here.link.rewrite = older
        with pytest.raises(PushFailed, match="too old to receive models"):
            await push(here)
