"""Parse the final text of a run as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from evoclaw.core.messages import JSON, is_object

_FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)


def parse_output(text: str, fields: Sequence[str] = ()) -> dict[str, JSON]:
    """Parse a JSON object, fenced or not; any other text becomes the first field, or `result`."""
    fenced = _FENCE.match(text)
    body = fenced.group(1) if fenced else text
    if body.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            value = None
        if is_object(value):
            return value
    return {fields[0] if fields else "result": text}
