from __future__ import annotations

import pytest

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.webhooks import resolve, resolve_text

DOCUMENT: JSON = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, "deep": {"id": 7, "on": True}}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", DOCUMENT),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/m~0n", 8),
        ("/deep/id", 7),
        ("/foo/2", None),
        ("/foo/01", None),
        ("/foo/-", None),
        ("/foo/-1", None),
        ("/foo/0/0", None),
        ("/nothing/there", None),
    ],
)
def test_a_json_pointer_is_resolved_as_rfc_6901_specifies(pointer: str, found: JSON) -> None:
    assert resolve(DOCUMENT, pointer) == found


@pytest.mark.parametrize(
    ("pointer", "text"),
    [("/foo/1", "baz"), ("/deep/id", "7"), ("/deep/on", ""), ("/foo", ""), ("/none", "")],
)
def test_find_text_returns_only_strings_and_integers(pointer: str, text: str) -> None:
    assert resolve_text(DOCUMENT, pointer) == text
