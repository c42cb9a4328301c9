"""`JsonRequest`: a request whose body is refused if it is no JSON, or is nested too deep."""

from __future__ import annotations

from typing import Any

from litestar import Request

from evoclaw.api.errors import ApiError
from evoclaw.core.encoding import is_deeper
from evoclaw.core.messages import JSON

MAX_BODY_DEPTH = 100
"""Nested objects and lists in a body. What is deeper could not be stored or validated."""


class JsonRequest(Request[Any, Any, Any]):
    """Reads the body of every route; the framework handles only some of the parser's errors."""

    async def json(self) -> JSON:
        """The body; `ApiError` 400 if it cannot be parsed."""
        try:
            value: JSON = await super().json()
        except UnicodeDecodeError as problem:
            raise _unreadable(f"it is not UTF-8: {problem.reason}") from None
        except RecursionError:
            raise _unreadable(f"it is nested more than {MAX_BODY_DEPTH} deep") from None
        body = await self.body()
        if body.count(b"{") + body.count(b"[") > MAX_BODY_DEPTH and is_deeper(
            value, MAX_BODY_DEPTH
        ):
            raise _unreadable(f"it is nested more than {MAX_BODY_DEPTH} deep")
        return value


def _unreadable(reason: str) -> ApiError:
    return ApiError(
        400,
        "unreadable",
        f"The body cannot be parsed: {reason}. Correct the JSON and send it again.",
    )
