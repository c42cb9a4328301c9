"""A library that few tests need is not imported by collecting them."""

from __future__ import annotations

from tests.support.lazy_imports import LazyModule


def test_what_pytest_asks_of_every_name_imports_nothing() -> None:
    missing = LazyModule("a_library_that_is_not_there")

    assert not hasattr(missing, "__wrapped__")
    assert not hasattr(missing, "_mock_name")


def test_what_a_test_uses_is_imported() -> None:
    assert LazyModule("json").loads("[1]") == [1]
