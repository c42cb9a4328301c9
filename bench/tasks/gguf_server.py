"""Serves a GGUF file with llama.cpp and the file's own chat template, until its input is closed.

Prints `READY <address>`. The server belongs to the benchmark, so that EvoClaw and its peers use the
same one, and its cache of prompts is kept between the runs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

CONTEXT_TOKENS = 8_192
MAX_OUTPUT_TOKENS = 512


def serve(path: str, name: str, threads: int) -> None:
    """Serve on a free port of loopback."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.ui = False
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, 1
    params.n_predict = MAX_OUTPUT_TOKENS
    params.sampling.temp = 0.0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    params.model_alias = {name}
    server = xllamacpp.Server(params)
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # the threads of the server would block a normal exit


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
