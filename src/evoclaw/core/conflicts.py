"""Which calls must not run concurrently: their resources overlap and one of them writes."""

from __future__ import annotations

import posixpath

from evoclaw.core.tools import ANY_RESOURCE, Call, Effect


def conflict(first: Call, second: Call) -> bool:
    """Whether `second` must wait for `first`."""
    if first.tool.effect is Effect.READ and second.tool.effect is Effect.READ:
        return False
    before, after = _resources(first), _resources(second)
    if ANY_RESOURCE in before or ANY_RESOURCE in after:
        return bool(before and after)
    return any(_overlap(a, b) for a in before for b in after)


def _resources(call: Call) -> tuple[str, ...]:
    found: list[str] = []
    for name in call.tool.resources:
        value = ANY_RESOURCE if name == ANY_RESOURCE else call.arguments.get(name, ANY_RESOURCE)
        # A resource that is not a plain string cannot be compared, so it counts as everything.
        found.append(value if isinstance(value, str) and value else ANY_RESOURCE)
    return tuple(found)


def _overlap(a: str, b: str) -> bool:
    """Whether two resources may be the same, or one contain the other; also for plain names."""
    if posixpath.isabs(a) != posixpath.isabs(b):
        return True  # the working directory of the relative path is not known here
    a, b = posixpath.normpath(a), posixpath.normpath(b)
    return a == b or "." in (a, b) or _holds(a, b) or _holds(b, a) or ".." in (a[:2], b[:2])


def _holds(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
