"""The measured models: a GGUF file, the embedded model, or any model that EvoClaw can name."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.providers.registry import endpoint_variables

OWN_SERVER = "llamacpp/"
SERVER_ADDRESS = "LLAMACPP_BASE_URL"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MeasuredModel:
    """A model that answers."""

    name: str
    """In the results; never a path."""
    spec: str
    """For `--model`."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The address of its server, or its key."""
    base_url: str = ""
    """Its OpenAI-compatible address, for the peers; empty if they cannot use it."""

    @property
    def for_commands(self) -> dict[str, str]:
        """The environment that makes every command use it."""
        return {"EVOCLAW_MODEL": self.spec, "PYTHONWARNINGS": "ignore", **self.env}


def gguf_path(spec: str) -> Path | None:
    """The file that a name means: a path of a GGUF file, with or without `local:`."""
    text = spec.removeprefix("local:")
    return Path(text).expanduser() if text.endswith(".gguf") else None


def result_name(spec: str) -> str:
    """The name of a model in the results: the same for a file, wherever it is served."""
    path = gguf_path(spec)
    return path.stem if path else spec.removeprefix(OWN_SERVER)


@asynccontextmanager
async def open_model(spec: str, threads: int | None = None) -> AsyncGenerator[MeasuredModel]:
    """The model, served while the block runs."""
    path = gguf_path(spec)
    if path is None:
        env = endpoint_variables(spec, os.environ)
        base_url = env.get(SERVER_ADDRESS, "") if spec.startswith(OWN_SERVER) else ""
        yield MeasuredModel(result_name(spec), spec, env, base_url)
        return
    if not path.is_file():
        raise SystemExit(f"there is no file {spec!r}; name a GGUF file, or PROVIDER/MODEL")
    name = path.stem
    async with serve_gguf(path, name, threads or os.cpu_count() or 1) as address:
        url = f"{address}/v1"
        yield MeasuredModel(name, OWN_SERVER + name, {SERVER_ADDRESS: url}, url)


@asynccontextmanager
async def serve_gguf(path: Path, name: str, threads: int) -> AsyncGenerator[str]:
    """A llama.cpp server in a child process; returns its address."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.tasks.gguf_server", str(path), name, str(threads)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                word, _, address = (await process.stdout.readline()).decode().strip().partition(" ")
            if word != "READY":
                log.seek(0)
                tail = log.read()[-500:].decode(errors="replace")
                raise SystemExit(f"llama.cpp cannot serve {name}: {tail}")
            yield address
        finally:
            process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
