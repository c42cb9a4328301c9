"""What the package offers is what it says it offers, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import evoclaw


def test_every_public_name_is_there_and_sorted() -> None:
    assert all(hasattr(evoclaw, name) for name in evoclaw.__all__)
    assert sorted(evoclaw.__all__, key=lambda n: (n[0].islower(), n)) == evoclaw.__all__


def test_nothing_heavy_is_loaded_until_it_is_used() -> None:
    heavy = ("aiohttp", "pydantic", "rich", "re2", "xllamacpp", "genai_prices", "asyncssh")
    code = f"import evoclaw, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
