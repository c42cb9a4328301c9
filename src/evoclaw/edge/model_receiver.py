"""Installs model files that an orchestrator pushes: in chunks, resumed, and verified before use.

A model file is parsed by a native library, and fills the disk. So the settings of the edge decide
which files are accepted; by default, those whose digest is in its own catalogue.
"""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.version import VERSION
from evoclaw.providers.models.catalogue import entry_of_digest
from evoclaw.providers.models.download import MAX_MODEL_BYTES
from evoclaw.providers.models.partial_file import DiskFull, PartialFile
from evoclaw.providers.models.pull import PulledModel, PullSource, pull
from evoclaw.providers.models.store import InstalledModel, ModelStore
from evoclaw.transport.wire import (
    Command,
    ModelPush,
    ModelPushStatus,
    WireError,
    as_payload,
    convert,
)

logger = logging.getLogger(__name__)

DEFAULT_ACCEPTED_MODELS = ("catalogue",)
ACCEPTED_MODEL = re.compile(r"catalogue|\*|sha256:[0-9a-f]{64}")
"""What `accept_models` may contain."""
IDLE_TIMEOUT_S = 60.0
"""Seconds without a chunk after which a push is closed; the next one resumes it."""
ANSWER_DELAY_S = 10.0
"""How long an answer waits for something to report, so that the orchestrator need not poll."""
MAX_PUSHES = 4
"""Pushes at the same time."""
MAX_WAITING_CHUNKS = 32
"""Chunks of one push that are not written yet; further ones are dropped and come again."""
SOURCE = "the orchestrator"


def unrecorded(_: InstalledModel) -> None:
    """No audit log is kept on this device."""


class _PushAbandoned(Exception):
    """The chunks stopped coming."""


class ModelReceiver:
    """The pushes of models to this device."""

    def __init__(
        self,
        store: ModelStore,
        accepted: Collection[str] = DEFAULT_ACCEPTED_MODELS,
        *,
        installed: Callable[[InstalledModel], None] = unrecorded,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        """Choose what is accepted.

        Args:
            store: Where models are installed.
            accepted: `catalogue`, `sha256:<digest>` or `*`.
            installed: Called with each model that was installed.
            idle_timeout_s: Seconds without a chunk after which a push is closed.
        """
        self._store, self._accepted = store, frozenset(accepted)
        self._note_installed, self._idle_timeout_s = installed, idle_timeout_s
        self._pushes: dict[str, _OpenPush] = {}

    async def answer(self, command: Command) -> JSON:
        """Take a step of a push; its status."""
        try:
            step = convert(command.payload, ModelPush)
        except WireError as problem:
            text = f"The push of a model cannot be read: {problem}."
            raise ToolFailure(problem.kind, text) from None
        if step.action == "start":
            return as_payload(await self._start(step))
        push = self._pushes.get(step.sha256)
        if push is None or push.is_abandoned:
            text = "No push of this model is open on the edge; start it again."
            raise ToolFailure(ErrorKind.CONFLICT, text)
        if step.action == "chunk":
            await push.add(step.offset, _chunk_data(step))
        return as_payload(await push.status())

    async def close(self) -> None:
        """End all pushes; what has come stays for the next ones."""
        for push in self._pushes.values():
            await push.close()

    async def _start(self, step: ModelPush) -> ModelPushStatus:
        """Open a push, or join one of the same file."""
        push = self._pushes.get(step.sha256)
        if push is None or push.is_over:
            if not self._accepts(step.sha256):
                return await self._installed(step.sha256)
            source = _source(step)
            self._make_room()
            push = _OpenPush(source, self._store, self._note_installed, self._idle_timeout_s)
            self._pushes[step.sha256] = push
        elif push.source.size_bytes != step.total_bytes:
            text = "Another push says that this model has another size; try again later."
            raise ToolFailure(ErrorKind.CONFLICT, text)
        return await push.status()

    def _accepts(self, digest: str) -> bool:
        known = "catalogue" in self._accepted and entry_of_digest(digest) is not None
        return known or not self._accepted.isdisjoint(("*", f"sha256:{digest}"))

    async def _installed(self, digest: str) -> ModelPushStatus:
        """The status of a model that is not accepted, but has been installed here."""
        model = await asyncio.to_thread(self._store.of_digest, digest)
        if model is not None:
            return _installed_status(model, was_installed=True)
        unknown = f", and it is not in the catalogue of its EvoClaw {VERSION}"
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"This edge does not accept the model{'' if entry_of_digest(digest) else unknown}. Its "
            f'owner can allow it: add "sha256:{digest}" to accept_models in agent.toml, and '
            "restart the edge.",
        )

    def _make_room(self) -> None:
        """Forget pushes that are over, if there are many; refuse too many open ones."""
        if len(self._pushes) < MAX_PUSHES:
            return
        self._pushes = {key: push for key, push in self._pushes.items() if not push.is_over}
        if len(self._pushes) >= MAX_PUSHES:
            raise ToolFailure(
                ErrorKind.QUEUE_FULL,
                f"This edge already receives {MAX_PUSHES} models; try again later.",
            )


class _OpenPush:
    """One model that is being received; ends with the installed model, or a failure."""

    def __init__(
        self,
        source: PullSource,
        store: ModelStore,
        installed: Callable[[InstalledModel], None],
        idle_timeout_s: float,
    ) -> None:
        self.source = source
        self.is_abandoned = False
        self._installed, self._idle_timeout_s = installed, idle_timeout_s
        self._is_waiting = False
        """Whether another process installs the same model."""
        self._part: PartialFile | None = None
        self._started, self._opened = asyncio.Event(), asyncio.Event()
        self._chunks = asyncio.Queue[_Chunk](MAX_WAITING_CHUNKS)
        self._pulled: PulledModel | None = None
        self._failure: tuple[ErrorKind, str] | None = None
        self._task = asyncio.create_task(self._run(store))

    @property
    def is_over(self) -> bool:
        """Whether nothing more is received."""
        return self._task.done()

    async def add(self, offset: int, data: bytes) -> None:
        """Write a chunk, unless it is there already or one before it is missing."""
        if offset + len(data) > self.source.size_bytes:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "The chunk is not a part of the file.")
        if self._part is None or self.is_over or self._chunks.full():
            return
        chunk = _Chunk(offset, data, asyncio.Event())
        self._chunks.put_nowait(chunk)
        await self._wait_for(chunk.written)

    async def status(self) -> ModelPushStatus:
        """How far it is; waits a while for the end of what takes long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_DELAY_S):
                # That it waits is reported at once, and then again after a while.
                await self._wait_for(self._opened if self._is_waiting else self._started)
                if self._is_complete:
                    await asyncio.wait([self._task])
        if self._failure is not None:
            raise ToolFailure(*self._failure)
        if (pulled := self._pulled) is not None:
            return _installed_status(pulled.model, was_installed=pulled.was_installed)
        if self.is_over:
            raise ToolFailure(ErrorKind.CONFLICT, "The push was closed; start it again.")
        if self._part is None:
            return ModelPushStatus("waiting" if self._is_waiting else "opening")
        state = "verifying" if self._is_complete else "receiving"
        return ModelPushStatus(state, have_bytes=self._part.size)

    async def close(self) -> None:
        """Stop receiving."""
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def _is_complete(self) -> bool:
        return self._part is not None and self._part.size >= self.source.size_bytes

    async def _wait_for(self, event: asyncio.Event) -> None:
        """Wait until something has happened, or the push is over."""
        happened = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait([happened, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            happened.cancel()

    async def _run(self, store: ModelStore) -> None:
        """Receive and install the file as a pull does."""
        try:
            self._pulled = await pull(
                self.source,
                store,
                progress=lambda done, total: None,
                note=self._wait_for_lock,
                fetch=self._receive,
            )
        except _PushAbandoned:
            self.is_abandoned = True
        except DiskFull as problem:
            self._failure = ErrorKind.RESOURCE, f"{problem}."
        except EvoClawError as problem:
            self._failure = ErrorKind.EXECUTION_FAILED, f"{problem}."
        except OSError as problem:
            text = f"The model cannot be written: {problem.strerror}."
            self._failure = ErrorKind.EXECUTION_FAILED, text
        else:
            if not self._pulled.was_installed:
                name = self._pulled.model.name
                logger.info("installed the model %s, which an orchestrator pushed", name)
                self._installed(self._pulled.model)

    def _wait_for_lock(self, text: str) -> None:
        self._is_waiting = True
        self._started.set()

    async def _receive(self, part: PartialFile) -> None:
        """Write the chunks in order, until the file is complete."""
        await asyncio.to_thread(part.check_space, self.source.size_bytes)
        self._part = part
        self._started.set()
        self._opened.set()
        while part.size < self.source.size_bytes:
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    chunk = await self._chunks.get()
            except TimeoutError:
                raise _PushAbandoned from None
            skipped = part.size - chunk.offset
            if 0 <= skipped < len(chunk.data):
                await asyncio.to_thread(part.add, chunk.data[skipped:])
            chunk.written.set()


class _Chunk(Struct, frozen=True):
    offset: int
    data: bytes
    written: asyncio.Event


def _installed_status(model: InstalledModel, *, was_installed: bool) -> ModelPushStatus:
    return ModelPushStatus("installed", model.size_bytes, model.name, was_installed)


def _source(step: ModelPush) -> PullSource:
    """What a push says that it brings; raises `ToolFailure` if that cannot be."""
    entry = entry_of_digest(step.sha256)
    if entry is not None and step.total_bytes != entry.size_bytes:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"The file has {step.total_bytes:,} bytes, and {entry.name} has "
            f"{entry.size_bytes:,}; run `evoclaw models verify` where it comes from.",
        )
    if not 0 < step.total_bytes <= MAX_MODEL_BYTES:
        raise ToolFailure(ErrorKind.TOO_LARGE, f"A model has 1 to {MAX_MODEL_BYTES:,} bytes.")
    return PullSource(
        name=entry.name if entry else step.name or f"model-{step.sha256[:8]}",
        url=SOURCE,
        sha256=step.sha256,
        size_bytes=step.total_bytes,
        trust="catalogue" if entry else "given",
    )


def _chunk_data(step: ModelPush) -> bytes:
    try:
        data = b64decode(step.data, validate=True)
    except (NotBase64, ValueError):
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "The chunk is not base64.") from None
    if sha256(data).hexdigest() != step.data_sha256:
        text = "The chunk was damaged in transit; push the model again."
        raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
    return data
