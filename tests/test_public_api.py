"""What the package offers is what it says it offers, and importing it is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import evoclaw
from evoclaw.core.version import VERSION


def test_every_public_name_exists_and_is_sorted() -> None:
    assert all(hasattr(evoclaw, name) for name in evoclaw.__all__)
    assert sorted(evoclaw.__all__, key=lambda n: (n[0].islower(), n)) == evoclaw.__all__


def test_the_type_stub_matches_the_public_names() -> None:
    stub = ast.parse((Path(evoclaw.__file__).parent / "__init__.pyi").read_text())
    typed = {
        f"{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    offered = {f"evoclaw.{where}.{name}" for name, where in vars(evoclaw)["_MODULE_OF"].items()}
    assert typed == offered


def test_an_unknown_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = vars(evoclaw)["__getattr__"]("nonsense")


@pytest.mark.process
def test_importing_evoclaw_loads_no_heavy_library() -> None:
    heavy = ("aiohttp", "pydantic", "rich", "re2", "xllamacpp", "genai_prices", "asyncssh")
    code = f"import evoclaw, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_matches_the_package_metadata() -> None:
    assert version("evoclaw") == VERSION
