"""Libraries that take long to import, and that few tests need."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A library that is imported when something of it is first used.

    Each process of a run imports every test file, and runs only some of the tests. `LazyLoader`
    does not do here: it imports as soon as pytest looks for fixtures among the names of a file.
    For the type checker, import the library as ever under `TYPE_CHECKING`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # pytest asks whether it is wrapped, or a mock
        return getattr(import_module(self._name), attribute)
