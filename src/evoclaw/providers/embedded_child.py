"""The child process of the embedded server: llama.cpp on loopback.

`python -m evoclaw.providers.embedded_child PARENT_PID SPEC` serves what a `ServerSpec` in JSON
says. It reads an API key from its standard input, prints `READY <address>`, and exits when that
input is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module, resources
from typing import Any

import msgspec
from msgspec import Struct

_PR_SET_PDEATHSIG = 1
_LOG_ERRORS = 1


class ServerSpec(Struct, frozen=True, kw_only=True):
    """What the child serves, and how; anyone on the machine can see it in the list of processes."""

    name: str
    """The name of the model."""
    path: str
    """The model file."""
    template: str
    """The packaged chat template; empty: that of the file."""
    threads: int
    slots: int
    context_tokens: int
    """The context of each slot."""
    max_output_tokens: int
    temperature: float
    prompt_cache_mib: int
    """The memory for prompts that have lost their slot."""


def serve(parent: int, spec: ServerSpec) -> None:
    """Serve until the parent closes our standard input, or dies."""
    _exit_with_parent(parent)
    key = sys.stdin.readline().strip()
    # By name: it has no types, and the parent must never load it.
    xllamacpp: Any = import_module("xllamacpp")
    params = _server_params(xllamacpp.CommonParams(), spec)
    # Without a key, any page in a browser could use a server on loopback.
    params.api_keys = [key]
    server = xllamacpp.Server(params)
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # The server's own threads would block a normal exit.
    os._exit(0)


def _server_params(params: Any, spec: ServerSpec) -> Any:
    params.model.path, params.model_alias = spec.path, {spec.name}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.ui, params.endpoint_slots = False, False
    # A service writes to this log for months.
    params.offline, params.verbosity = True, _LOG_ERRORS
    # Each slot gets an equal part of the context.
    params.n_ctx, params.n_parallel = spec.context_tokens * spec.slots, spec.slots
    params.n_predict, params.cache_ram_mib = spec.max_output_tokens, spec.prompt_cache_mib
    params.sampling.temp = spec.temperature
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec.threads
    params.use_jinja = True
    if spec.template:
        packaged = resources.files("evoclaw.providers").joinpath(spec.template)
        params.chat_template = packaged.read_text()
    return params


def _exit_with_parent(parent: int) -> None:
    """On Linux, have the kernel kill this process when the parent dies."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ServerSpec))
