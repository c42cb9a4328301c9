"""The model files of tests with a real model, where this machine has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.providers.embedded import SMOLLM2, packaged_model
from evoclaw.providers.local_model import LocalModel

VARIABLE = "EVOCLAW_TEST_WEIGHTS"
"""Names the folder of the model files."""
DEFAULT_FOLDER = Path(__file__).parents[2] / ".venv" / "weights"
CODER_05B, CODER_15B = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
MODELS = (SMOLLM2, CODER_05B, CODER_15B)
"""From the smallest to the largest."""

_MEMORY_BYTES = {CODER_05B: 900 << 20, CODER_15B: 1800 << 20}


def find_model(name: str) -> LocalModel | None:
    """The model, if its file is here."""
    if name == SMOLLM2:
        try:
            return packaged_model()
        except ConfigError:
            return None
    path = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER) / f"{name}-instruct-q4_k_m.gguf"
    if not path.is_file():
        return None
    return LocalModel(name=name, path=path, context_tokens=8192, memory_bytes=_MEMORY_BYTES[name])


def require_model(name: str) -> LocalModel:
    """The model; without its file the test is skipped."""
    model = find_model(name)
    if model is None:
        pytest.skip(
            f"the weights of {name} are not here: run `make test-weights`, or set {VARIABLE} to "
            "their folder"
        )
    return model
