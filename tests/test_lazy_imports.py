"""A library that few tests need is not imported by collecting them."""

from __future__ import annotations

from tests.support.lazy_imports import LazyModule


def test_attribute_lookups_by_pytest_import_nothing() -> None:
    missing = LazyModule("a_library_that_is_not_there")

    assert not hasattr(missing, "__wrapped__")
    assert not hasattr(missing, "_mock_name")


def test_using_an_attribute_imports_the_library() -> None:
    assert LazyModule("json").loads("[1]") == [1]
