"""The models folder of this user: installed files, by the digest of their content."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.providers.models.catalogue import ModelEntry, catalogue, entry_of_digest
from evoclaw.providers.models.gguf import GgufHeader, read_gguf_header

DIGEST = re.compile(r"[0-9a-f]{64}")
READ_BYTES = 2**20
_ACCEPTED_FILE = "accepted-digests"
"""Addresses and the digest of what came from them first, for files of no known digest."""
_LOCK_POLL_INTERVAL_S = 0.2
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


class ModelDamaged(EvoClawError):
    """The content of a model file is not what its digest says."""


class InstalledModel(Struct, frozen=True, kw_only=True):
    """A file in the models folder, or in a package, whose digest was verified."""

    name: str
    sha256: str
    size_bytes: int
    source: str
    """Where it came from: an address, a path or a package."""
    path: Path
    trust: str = "catalogue"
    """Where its digest came from: `catalogue`, `given` by the user, or `first` use."""
    verified_at: float = 0.0
    modified_ns: int = 0
    """The file's time stamp when it was verified; 0 is not checked."""

    @property
    def entry(self) -> ModelEntry | None:
        """Its entry in the catalogue; None if it is not there."""
        return entry_of_digest(self.sha256)


def models_folder(env: Mapping[str, str]) -> Path:
    """The folder of the model files, in the data folder; it may not exist yet."""
    return Path(env.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser() / "models"


class ModelStore:
    """The model files of this user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def installed(self) -> list[InstalledModel]:
        """All usable files: those of the folder, and those that packages brought."""
        found = [self._read(path) for path in sorted(self.folder.glob("*.json"))]
        models = [model for model in found if model is not None]
        digests = {model.sha256 for model in models}
        packaged = (packaged_model(entry) for entry in catalogue() if entry.package)
        models += [model for model in packaged if model and model.sha256 not in digests]
        order = {entry.sha256: rank for rank, entry in enumerate(catalogue())}
        return sorted(models, key=lambda model: (order.get(model.sha256, len(order)), model.name))

    def named(self, name: str) -> InstalledModel | None:
        """The installed model of a name; None if there is none."""
        return next((model for model in self.installed() if model.name == name), None)

    def of_digest(self, digest: str) -> InstalledModel | None:
        """The installed model with this digest; None if there is none."""
        return next((model for model in self.installed() if model.sha256 == digest), None)

    def path(self, digest: str) -> Path:
        """Where the file with this digest is, or would be."""
        return self.folder / f"{digest}.gguf"

    def find_file(self, digest: str) -> Path | None:
        """The file with this digest in the folder; None if there is none."""
        path = self.path(digest)
        return path if DIGEST.fullmatch(digest) and path.is_file() else None

    def free_name(self, wanted: str, digest: str) -> str:
        """A name for a file that is not in the catalogue."""
        stem = wanted.removesuffix(".gguf").lower()
        name = _NOT_IN_NAMES.sub("-", stem).strip("-.")[:80] or "model"
        taken = {entry.name for entry in catalogue()}
        taken |= {model.name for model in self.installed() if model.sha256 != digest}
        return f"{name}-{digest[:8]}" if name in taken else name

    def adopt(
        self, file: Path, *, name: str, digest: str, source: str, trust: str
    ) -> InstalledModel:
        """Move a verified file into place, and remember its digest."""
        path = self.path(digest)
        file.chmod(0o400)
        file.replace(path)
        status = path.stat()
        model = InstalledModel(
            name=name,
            sha256=digest,
            size_bytes=status.st_size,
            source=source,
            path=path,
            trust=trust,
            verified_at=time.time(),
            modified_ns=status.st_mtime_ns,
        )
        self._write(model)
        if trust == "first":
            accepted = {**self._accepted_digests(), source: digest}
            _replace_file(self.folder / _ACCEPTED_FILE, msgspec.json.encode(accepted))
        return model

    def remembered_digest(self, url: str) -> str:
        """The digest of the first file that came from an address; empty if none did."""
        return self._accepted_digests().get(url, "")

    def _accepted_digests(self) -> dict[str, str]:
        try:
            content = (self.folder / _ACCEPTED_FILE).read_bytes()
        except FileNotFoundError:
            return {}
        return msgspec.json.decode(content, type=dict[str, str])

    def remove(self, model: InstalledModel) -> None:
        """Delete a file and what is known about it."""
        if model.path.parent != self.folder:
            raise ConfigError(
                f"{model.name} belongs to the package {model.source}; remove it with: "
                f"pip uninstall {model.source}"
            )
        model.path.with_suffix(".json").unlink(missing_ok=True)
        model.path.unlink(missing_ok=True)

    def partial_bytes(self, digest: str) -> int:
        """How much of a file an interrupted pull has left."""
        try:
            return (self.folder / f"{digest}.part").stat().st_size
        except FileNotFoundError:
            return 0

    def remove_partial(self, digest: str) -> int:
        """Delete what an interrupted pull has left; how many bytes."""
        left = self.partial_bytes(digest)
        for suffix in (".part", ".part.json"):
            (self.folder / f"{digest}{suffix}").unlink(missing_ok=True)
        return left

    def verify(self, model: InstalledModel, progress: Callable[[int], None]) -> GgufHeader:
        """Read a whole file and check its digest and its header.

        Raises:
            ModelDamaged: The digest does not match.
            GgufError: It cannot be used as a model.
        """
        digest = file_digest(model.path, progress)
        if digest != model.sha256:
            raise ModelDamaged(
                f"{model.name} is damaged: its SHA-256 is {digest}, not {model.sha256}; run "
                f"`evoclaw models rm {model.name}`, then `evoclaw models pull {model.name}`"
            )
        header = read_gguf_header(model.path)
        if model.entry is None:
            header.check_usable(model.path)
        if model.path.parent == self.folder:
            verified = msgspec.structs.replace(
                model, verified_at=time.time(), modified_ns=model.path.stat().st_mtime_ns
            )
            self._write(verified)
        return header

    @asynccontextmanager
    async def locked(self, key: str, waiting: Callable[[], None]) -> AsyncGenerator[None]:
        """Hold the lock of one file; wait while another process has it.

        Args:
            key: A digest, or another name for the file.
            waiting: Called once if another process has the lock.
        """
        make_models_folder(self.folder)
        lock = os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_told = False
            while not _try_lock(lock):
                if not is_told:
                    waiting()
                    is_told = True
                await asyncio.sleep(_LOCK_POLL_INTERVAL_S)
            yield
        finally:
            os.close(lock)

    def _read(self, file: Path) -> InstalledModel | None:
        """The model that a file describes; None if it, or the model, is not there."""
        try:
            content = file.read_bytes()
            model = msgspec.json.decode(content, type=InstalledModel, dec_hook=_decode_path)
        except (OSError, msgspec.MsgspecError):
            return None
        path = file.with_suffix(".gguf")
        return msgspec.structs.replace(model, path=path) if path.is_file() else None

    def _write(self, model: InstalledModel) -> None:
        _replace_file(model.path.with_suffix(".json"), msgspec.json.encode(model, enc_hook=str))


def make_models_folder(folder: Path) -> None:
    """Create the models folder, private to its owner."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        raise ConfigError(
            f"cannot create {folder}: {problem.strerror}; make its parent writable, or set "
            "EVOCLAW_HOME to another folder"
        ) from None


def packaged_model(entry: ModelEntry) -> InstalledModel | None:
    """The file of an entry that an installed package contains; None if there is none."""
    from importlib import metadata  # it takes longer to import than all of this module

    # Only the files are looked up: importing the package could load a second llama.cpp.
    try:
        files = metadata.files(entry.package) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))
    path = next((path for path in paths if path.is_file()), None)
    if path is None or path.stat().st_size != entry.size_bytes:
        return None
    return InstalledModel(
        name=entry.name,
        sha256=entry.sha256,
        size_bytes=entry.size_bytes,
        source=entry.package,
        path=path,
    )


def check_unchanged(model: InstalledModel) -> None:
    """Raise `ConfigError` if a file was changed since its digest was verified."""
    status = model.path.stat()
    if status.st_size != model.size_bytes or model.modified_ns not in (0, status.st_mtime_ns):
        raise ConfigError(
            f"{model.path} was changed after it was verified; run "
            f"`evoclaw models verify {model.name}`"
        )


def file_digest(path: Path, progress: Callable[[int], None]) -> str:
    """The SHA-256 of a file; calls `progress` with the bytes read so far."""
    digest, read = sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            read += len(piece)
            progress(read)
    return digest.hexdigest()


def _decode_path(kind: type, value: str) -> Path:
    return Path(value)


def _replace_file(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    draft.replace(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
