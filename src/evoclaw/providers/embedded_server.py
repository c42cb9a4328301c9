"""The server of a model on this machine: llama.cpp in a child process, behind a random key."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from contextlib import suppress

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.providers.embedded_child import ServerSpec
from evoclaw.providers.embedded_settings import DEFAULT_EMBEDDED_SETTINGS, EmbeddedSettings
from evoclaw.providers.free_cores import free_cores
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.gguf import read_gguf_header
from evoclaw.providers.models.local import require_server
from evoclaw.providers.models.memory import machine_memory

DEFAULT_SLOTS = 2
MAX_PROMPT_CACHE_MIB = 256
"""Memory for the prompts of conversations that have lost their slot to another one."""

_START_TIMEOUT_S = 180.0
"""A child that fails exits at once; this is for a slow disk."""
_STOP_TIMEOUT_S = 3.0
_EXIT_TIMEOUT_S = 2.0
"""Between a broken connection and the exit of the child."""
_MAX_QUOTED_LOG_BYTES = 500


class ServerMemory(Struct, frozen=True):
    """How a server uses the memory that is available."""

    slots: int
    prompt_cache_mib: int


def check_model(model: LocalModel, settings: EmbeddedSettings) -> int:
    """The memory in bytes that each token of context takes, after checking the model's file.

    Raises:
        ConfigError: The file is missing, is no model, has no chat template, or has a smaller
            context than the settings require.
    """
    if not model.path.is_file():
        raise ConfigError(
            f"the file of the model {model.name!r} is missing: {model.path}. Get it with "
            f"`evoclaw models pull {model.name}`, or choose another model"
        )
    header = read_gguf_header(model.path)
    if not model.template and not header.has_chat_template:
        raise ConfigError(
            f"{model.path} has no chat template, so it cannot answer messages; choose a model "
            "that is made for conversations: its name usually contains 'instruct' or 'chat'"
        )
    context = slot_context(model, settings)
    if header.context_tokens and context > header.context_tokens:
        raise ConfigError(
            f"the model {model.name!r} has a context of {header.context_tokens:,} tokens; set "
            f"context_tokens in [embedded] to at most that, it is {context:,}"
        )
    return header.cache_bytes_per_token


def plan_memory(
    model: LocalModel, settings: EmbeddedSettings, token_bytes: int, available: int | None
) -> ServerMemory:
    """The slots that fit into the memory that is available, and what is left for prompts.

    Args:
        model: The model to serve.
        settings: The slots and their context.
        token_bytes: The memory for each token of context.
        available: In bytes; None if it is not known.

    Raises:
        ProviderError: The memory is too little.
    """
    if available is None:
        return ServerMemory(settings.slots or DEFAULT_SLOTS, MAX_PROMPT_CACHE_MIB)
    context, needed = slot_context(model, settings), 0
    for slots in [settings.slots] if settings.slots else range(DEFAULT_SLOTS, 0, -1):
        needed = model.memory_bytes + (context * slots - model.context_tokens) * token_bytes
        if needed <= available:
            rest_mib = (available - needed) >> 20
            return ServerMemory(slots, min(MAX_PROMPT_CACHE_MIB, rest_mib // 2))
    raise ProviderError(
        ProviderErrorKind.SERVER_ERROR,
        f"the model {model.name!r} needs {needed / 1e9:.1f} GB of memory, and only "
        f"{available / 1e9:.1f} GB is available. Close other programs, lower slots or "
        "context_tokens in [embedded], or choose a smaller model: `evoclaw models` lists what fits",
    )


def slot_context(model: LocalModel, settings: EmbeddedSettings) -> int:
    """The context of each slot."""
    return settings.context_tokens or model.context_tokens


class EmbeddedServer:
    """A llama.cpp server on loopback; it is started once."""

    def __init__(
        self,
        model: LocalModel,
        settings: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS,
        *,
        start_timeout: float = _START_TIMEOUT_S,
    ) -> None:
        self.model, self._settings, self._start_timeout = model, settings, start_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `aclose`)
        self.key = secrets.token_hex(16)
        """The API key that a client must send."""

    @property
    def running(self) -> bool:
        """Whether the child is alive."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid if self._process else None

    async def start(self) -> str:
        """Start the child; return its address when it is ready.

        Raises:
            ProviderError: The model cannot be served, or the server was not ready in time.
        """
        spec = await asyncio.to_thread(self._checked_spec)
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "evoclaw.providers.embedded_child"),
            *(str(os.getpid()), msgspec.json.encode(spec).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
        )
        try:
            async with asyncio.timeout(self._start_timeout):
                return await self._address(process)
        except (TimeoutError, OSError, ValueError):
            reason = await self.exit_reason() or f"not ready after {self._start_timeout:g} s"
            await self.aclose()
            raise ProviderError(
                ProviderErrorKind.SERVER_ERROR,
                f"the server of the model {self.model.name!r} did not start: {reason}",
            ) from None
        except asyncio.CancelledError:
            await self.aclose()
            raise

    def _checked_spec(self) -> ServerSpec:
        try:
            require_server()
            token_bytes = check_model(self.model, self._settings)
        except ConfigError as problem:
            raise ProviderError(ProviderErrorKind.MODEL_NOT_FOUND, str(problem)) from None
        available = machine_memory().free_bytes or None
        memory = plan_memory(self.model, self._settings, token_bytes, available)
        return ServerSpec(
            name=self.model.name,
            path=str(self.model.path),
            template=self.model.template,
            threads=self._settings.threads or free_cores(),
            slots=memory.slots,
            context_tokens=slot_context(self.model, self._settings),
            max_output_tokens=self.model.max_output_tokens,
            temperature=self.model.temperature,
            prompt_cache_mib=memory.prompt_cache_mib,
        )

    async def _address(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{self.key}\n".encode())
        await process.stdin.drain()
        word, _, address = (await process.stdout.readline()).decode().strip().partition(" ")
        if word != "READY":
            raise ValueError(word)
        return address

    async def exit_reason(self) -> str:
        """Why the child has exited; empty if it is alive."""
        process = self._process
        if process is None:
            return "it was stopped"
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                code = await process.wait()
        except TimeoutError:
            return ""
        if code == -signal.SIGKILL:
            return "it was killed, probably because the machine ran out of memory"
        return f"it exited with code {code}: {self._log_tail() or 'no output'}"

    def _log_tail(self) -> str:
        if self._log.closed:
            return ""  # another request has stopped the server already
        self._log.seek(0)
        text = self._log.read()[-_MAX_QUOTED_LOG_BYTES:].decode(errors="replace")
        return " ".join(text.split())

    async def aclose(self) -> None:
        """Stop the child: terminate it, then kill it."""
        process, self._process = self._process, None
        if process is not None:
            await _stop(process)
        self._log.close()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for end in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
                return
