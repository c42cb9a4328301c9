"""Parameter types that several routes share."""

from __future__ import annotations

from typing import Annotated

from litestar.params import HeaderParameter, PathParameter, QueryParameter
from msgspec import Meta

PLAIN = r"^[^\u0000]*$"
"""Any text without NUL, which PostgreSQL cannot store."""
NAMED = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"

Id = Annotated[str, PathParameter(pattern=NAMED, description="The id, as in the list.")]
"""An id in a path."""
Cursor = Annotated[
    str,
    QueryParameter(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$",
        description="The `next` of the previous page; empty starts with the newest.",
    ),
]
Most = Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")]
IdOrNone = Annotated[
    str,
    QueryParameter(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$",
        description="Only items with this id; empty: all.",
    ),
]
Key = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        pattern=r"^[\x20-\x7e]{0,200}$",
        description="A key of your choice: a repeated request with it returns the first result.",
    ),
]
After = Annotated[
    int, QueryParameter(ge=0, le=1 << 53, description="Start after the record with this number.")
]
LastEvent = Annotated[
    int,
    HeaderParameter(
        name="Last-Event-ID",
        ge=0,
        le=1 << 53,
        description="The same as `after`; event-stream clients send it when they reconnect.",
    ),
]

Text = Annotated[str, Meta(pattern=PLAIN)]
"""Free text; its length is limited by the size of the body."""
Line = Annotated[str, Meta(max_length=200, pattern=PLAIN)]
"""A title or a name."""
Reason = Annotated[str, Meta(max_length=2_000, pattern=PLAIN)]
Name = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@/-]{0,127})?$")]
"""An id in a body; empty: not set."""
