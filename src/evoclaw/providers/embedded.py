"""Models on this machine: llama.cpp serving a model file in a child process.

`python -m evoclaw.providers.embedded` is the child: it reads a key from its standard input, prints
`READY <address>`, and exits when that input is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.local import require_server

if TYPE_CHECKING:
    from evoclaw.providers.http import Http

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 3.0
_PR_SET_PDEATHSIG = 1


class EmbeddedServer:
    """A llama.cpp server on loopback, in a child process, protected by a random API key."""

    def __init__(
        self, model: LocalModel, *, threads: int = 1, start_timeout: float = _START_TIMEOUT_S
    ) -> None:
        self.model = model
        self._threads, self._start_timeout = threads, start_timeout
        self._process: asyncio.subprocess.Process | None = None
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
            ConfigError: A package is not installed.
            ProviderError: It was not ready in time.
        """
        require_server()
        with tempfile.TemporaryFile() as log:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "evoclaw.providers.embedded", str(os.getpid()), str(self._threads)),
                msgspec.json.encode(self.model, enc_hook=str).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
            try:
                async with asyncio.timeout(self._start_timeout):
                    return await self._address(process)
            except (TimeoutError, OSError, ValueError):
                await self.aclose()
                raise ProviderError(
                    ProviderErrorKind.SERVER_ERROR,
                    f"the embedded model did not start: {_tail(log) or 'no output'}",
                ) from None
            except asyncio.CancelledError:
                await self.aclose()
                raise

    async def _address(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{self.key}\n".encode())
        await process.stdin.drain()
        word, _, address = (await process.stdout.readline()).decode().strip().partition(" ")
        if word != "READY":
            raise ValueError(word)
        return address

    async def wait(self) -> None:
        """Wait until the child has exited by itself."""
        if self._process is not None:
            await self._process.wait()

    async def aclose(self) -> None:
        """Stop the child: terminate it, then kill it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for end in (process.terminate, process.kill):
            with suppress(ProcessLookupError):
                end()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
                    return


def _tail(log: BinaryIO) -> str:
    log.seek(0)
    return log.read()[-500:].decode(errors="replace").strip()


class EmbeddedProvider:
    """A model file as a provider; its server starts with the first request."""

    def __init__(
        self, *, model: LocalModel, http: Http, server: EmbeddedServer | None = None
    ) -> None:
        require_server()
        self._http, self._model = http, model
        self._server = server or EmbeddedServer(model)
        self._inner: Provider | None = None
        self._starting = asyncio.Lock()

    @property
    def model(self) -> str:
        """The model's name."""
        return f"embedded/{self._model.name}"

    @property
    def profile(self) -> Profile:
        """A short context, native calls, no images."""
        return Profile(self._model.context_tokens, self._model.max_output_tokens)

    async def aclose(self) -> None:
        """Stop the server, if it was started."""
        async with self._starting:
            self._inner = None
            await self._server.aclose()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Start the server if it is not running, and request a reply."""
        inner = await self._started()
        async with aclosing(inner.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def _started(self) -> Provider:
        from evoclaw.providers.openai import OpenAIProvider

        async with self._starting:
            if self._inner is None or not self._server.running:
                await self._server.aclose()
                address = await self._server.start()
                self._inner = OpenAIProvider(
                    self._model.name,
                    http=self._http,
                    base_url=f"{address}/v1",
                    api_key=self._server.key,
                    # It closes the connection after a stream, despite its keep-alive header.
                    headers={"Connection": "close"},
                    name="embedded",
                    profile=self.profile,
                    price=_zero_price,
                )
            return self._inner


def _zero_price(model: str, usage: object) -> float:
    return 0.0


def serve(parent: int, threads: int, model: LocalModel) -> None:
    """Run in the child: serve until the parent closes our standard input, or dies."""
    _exit_with_parent(parent)
    key = sys.stdin.readline().strip()
    # By name: it has no types, and the parent must never load it.
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(model.path)
    params.hostnames, params.port = ["127.0.0.1"], 0
    # Without a key, any page in a browser could use a server on loopback.
    params.api_keys, params.ui = [key], False
    params.n_ctx, params.n_parallel = model.context_tokens, 1
    params.n_predict, params.cache_ram_mib = model.max_output_tokens, 0
    params.sampling.temp = model.temperature
    # On a busy machine, two threads waste time spinning.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    if model.template:
        template = resources.files("evoclaw.providers").joinpath(model.template)
        params.chat_template = template.read_text()
    params.model_alias = {model.name}
    server = xllamacpp.Server(params)
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # The server's own threads would block a normal exit.
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    """On Linux, have the kernel kill this process when the parent dies."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    serve(
        int(sys.argv[1]),
        int(sys.argv[2]),
        msgspec.json.decode(sys.argv[3], type=LocalModel, dec_hook=lambda _, text: Path(text)),
    )
