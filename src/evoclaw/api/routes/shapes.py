"""What the requests and answers of several routes are made of."""

from __future__ import annotations

from typing import Annotated

from litestar.params import HeaderParameter, PathParameter, QueryParameter
from msgspec import Meta

PLAIN = r"^[^\u0000]*$"
"""Any text without NUL, which not every store can keep."""
NAMED = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"

Id = Annotated[str, PathParameter(pattern=NAMED, description="As the list of these says.")]
"""An id in a path."""
Cursor = Annotated[
    str,
    QueryParameter(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$",
        description="What `next` said on the page before; empty begins with the newest.",
    ),
]
Most = Annotated[int, QueryParameter(ge=1, le=200, description="How many at most.")]
IdOrNone = Annotated[
    str,
    QueryParameter(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$",
        description="Only those of this one; empty is all.",
    ),
]
Key = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        pattern=r"^[\x20-\x7e]{0,200}$",
        description="Of your own choice; the same again gives what was begun with it, not another.",
    ),
]
After = Annotated[
    int, QueryParameter(ge=0, le=1 << 53, description="Begin behind the record of this number.")
]
LastEvent = Annotated[
    int,
    HeaderParameter(
        name="Last-Event-ID",
        ge=0,
        le=1 << 53,
        description="The same as `after`, as a client says it by itself when it comes back.",
    ),
]

Text = Annotated[str, Meta(pattern=PLAIN)]
"""What somebody says; how long it may be is for the limit on bodies to say."""
Line = Annotated[str, Meta(max_length=200, pattern=PLAIN)]
"""A title, a name."""
Reason = Annotated[str, Meta(max_length=2_000, pattern=PLAIN)]
Name = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@/-]{0,127})?$")]
"""An id in a body; empty leaves it open."""
