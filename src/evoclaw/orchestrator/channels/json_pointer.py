"""JSON pointers (RFC 6901)."""

from __future__ import annotations

import re

from evoclaw.core.messages import JSON, is_array, is_object

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def resolve(document: JSON, pointer: str) -> JSON:
    """The value that a pointer refers to; None if there is none."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if is_object(document):
            document = document.get(key)
        elif is_array(document) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def resolve_text(document: JSON, pointer: str) -> str:
    """The string or the integer that a pointer refers to, as text; empty if there is none."""
    found = resolve(document, pointer)
    if isinstance(found, bool) or not isinstance(found, str | int):
        return ""
    return str(found)
