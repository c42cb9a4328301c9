"""Parameter types that several routes share."""

from __future__ import annotations

from typing import Annotated

from litestar.params import HeaderParameter, PathParameter, QueryParameter
from msgspec import Meta

NO_NUL_PATTERN = r"^[^\u0000]*$"
"""Any text without NUL, which PostgreSQL cannot store."""
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"

OPTIONAL_ID_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$"


def path_id(description: str) -> PathParameter:
    """An id in a path."""
    return PathParameter(pattern=ID_PATTERN, description=description)


def id_filter(description: str) -> QueryParameter:
    """An id in a query; empty: no filter."""
    return QueryParameter(pattern=OPTIONAL_ID_PATTERN, description=description)


RunId = Annotated[str, path_id("The id of the run.")]
SessionId = Annotated[str, path_id("The id of the session.")]
AgentName = Annotated[str, path_id("The name of the agent.")]
WorkflowName = Annotated[str, path_id("The name of the workflow.")]
ChannelName = Annotated[str, path_id("The name of the channel.")]
ToolName = Annotated[str, path_id("The name of the tool.")]
EdgeId = Annotated[str, path_id("The id of the edge.")]
AgentFilter = Annotated[str, id_filter("Only items of this agent; empty: all.")]
SessionFilter = Annotated[str, id_filter("Only items of this session; empty: all.")]
RunFilter = Annotated[str, id_filter("Only items of this run; empty: all.")]
Cursor = Annotated[
    str,
    QueryParameter(
        pattern=OPTIONAL_ID_PATTERN,
        description="The `next` of the previous page; empty starts with the newest.",
    ),
]
PageLimit = Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")]
IdempotencyKey = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        pattern=r"^[\x20-\x7e]{0,200}$",
        description="A key of your choice: a repeated request with it returns the first result.",
    ),
]
AfterRecord = Annotated[
    int, QueryParameter(ge=0, le=1 << 53, description="Start after the record with this number.")
]
LastEventId = Annotated[
    int,
    HeaderParameter(
        name="Last-Event-ID",
        ge=0,
        le=1 << 53,
        description="The same as `after`; event-stream clients send it when they reconnect.",
    ),
]

Text = Annotated[str, Meta(pattern=NO_NUL_PATTERN)]
"""Free text; its length is limited by the size of the body."""
ShortText = Annotated[str, Meta(max_length=200, pattern=NO_NUL_PATTERN)]
"""A title or a name."""
Reason = Annotated[str, Meta(max_length=2_000, pattern=NO_NUL_PATTERN)]
OptionalId = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@/-]{0,127})?$")]
"""An id in a body; empty: not set."""
EdgeChoice = Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")]
"""An edge, `any` or `*` in a body; empty: not set."""
