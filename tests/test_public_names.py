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


def test_every_public_name_is_there_and_sorted() -> None:
    assert all(hasattr(evoclaw, name) for name in evoclaw.__all__)
    assert sorted(evoclaw.__all__, key=lambda n: (n[0].islower(), n)) == evoclaw.__all__


def test_the_types_are_those_of_the_same_names() -> None:
    stub = ast.parse((Path(evoclaw.__file__).parent / "__init__.pyi").read_text())
    typed = {
        f"{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    offered = {f"evoclaw.{where}.{name}" for name, where in vars(evoclaw)["_WHERE"].items()}
    assert typed == offered


def test_a_name_that_is_not_offered_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = vars(evoclaw)["__getattr__"]("nonsense")


@pytest.mark.process
def test_nothing_heavy_is_loaded_until_it_is_used() -> None:
    heavy = ("aiohttp", "pydantic", "rich", "re2", "xllamacpp", "genai_prices", "asyncssh")
    code = f"import evoclaw, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_packages() -> None:
    assert version("evoclaw") == VERSION
