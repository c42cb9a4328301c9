"""The messages of A2A 1.0, as its JSON bindings write them.

Unknown fields are ignored, as the specification asks for.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from evoclaw.core.messages import JSON

PROTOCOL_VERSION = "1.0"
LEGACY_VERSION = "0.3"
"""The older version, which an empty version means."""
MAX_PAGE_SIZE, DEFAULT_PAGE_SIZE = 100, 50
"""Tasks of one page of `ListTasks`."""
MAX_PARTS = 100
"""Parts of one message."""
Id = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
HistoryLength = Annotated[int, Meta(ge=0)]


class A2aTaskState(StrEnum):
    """The state of a task."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


TERMINAL_STATES = frozenset(
    {A2aTaskState.COMPLETED, A2aTaskState.FAILED, A2aTaskState.CANCELED, A2aTaskState.REJECTED}
)
"""The states after which a task does not change."""


class A2aRole(StrEnum):
    """Who wrote a message."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


class A2aPart(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A piece of a message or an artifact; it has exactly one of the first four fields."""

    text: str | UnsetType = UNSET
    raw: str | UnsetType = UNSET
    """The bytes of a file in base64."""
    url: str | UnsetType = UNSET
    data: JSON | UnsetType = UNSET
    metadata: dict[str, JSON] = {}
    filename: Annotated[str, Meta(max_length=1_000)] = ""
    media_type: Annotated[str, Meta(max_length=200)] = ""


class A2aMessage(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One message of a conversation between a client and an agent."""

    message_id: Annotated[Id, Meta(min_length=1)]
    role: A2aRole
    parts: Annotated[tuple[A2aPart, ...], Meta(min_length=1, max_length=MAX_PARTS)]
    context_id: Id = ""
    task_id: Id = ""
    metadata: dict[str, JSON] = {}
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()


class A2aTaskStatus(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The state of a task, since when, and what the agent says about it."""

    state: A2aTaskState
    message: A2aMessage | None = None
    timestamp: str = ""


class A2aArtifact(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A result of a task."""

    artifact_id: str
    parts: tuple[A2aPart, ...]
    name: str = ""


class A2aTask(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A task: one run."""

    id: str
    context_id: str
    status: A2aTaskStatus
    artifacts: tuple[A2aArtifact, ...] | UnsetType = UNSET
    history: tuple[A2aMessage, ...] = ()
    metadata: dict[str, JSON] = {}


class A2aStatusUpdate(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The state of a task has changed, or the agent says something while it works."""

    task_id: str
    context_id: str
    status: A2aTaskStatus


class A2aArtifactUpdate(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A piece of a result."""

    task_id: str
    context_id: str
    artifact: A2aArtifact
    append: bool = False
    """Whether it continues the artifact; if not, it replaces the artifact."""
    last_chunk: bool = False


class A2aEvent(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One item of a stream, or the answer to `SendMessage`; exactly one field is set."""

    task: A2aTask | None = None
    status_update: A2aStatusUpdate | None = None
    artifact_update: A2aArtifactUpdate | None = None


class A2aSendConfiguration(Struct, frozen=True, rename="camel"):
    """How a message is to be answered."""

    accepted_output_modes: tuple[str, ...] = ()
    history_length: HistoryLength | None = None
    return_immediately: bool = False
    task_push_notification_config: dict[str, JSON] | None = None


class _A2aRequest(Struct, frozen=True, rename="camel"):
    """The parameters of every request."""

    tenant: str = ""
    """The tenant that the agent card names: this service's cards name none."""


class A2aSendRequest(_A2aRequest, frozen=True, rename="camel", kw_only=True):
    """The parameters of `SendMessage` and `SendStreamingMessage`."""

    message: A2aMessage
    configuration: A2aSendConfiguration = A2aSendConfiguration()


class A2aGetRequest(_A2aRequest, frozen=True, rename="camel", kw_only=True):
    """The parameters of `GetTask`."""

    id: Annotated[Id, Meta(min_length=1)]
    history_length: HistoryLength | None = None


class A2aTaskRequest(_A2aRequest, frozen=True, rename="camel", kw_only=True):
    """The parameters of `CancelTask` and `SubscribeToTask`."""

    id: Annotated[Id, Meta(min_length=1)]


class A2aListRequest(_A2aRequest, frozen=True, rename="camel", kw_only=True):
    """The parameters of `ListTasks`."""

    context_id: Id = ""
    status: A2aTaskState = A2aTaskState.UNSPECIFIED
    page_size: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    page_token: Annotated[str, Meta(max_length=400)] = ""
    history_length: HistoryLength | None = None
    status_timestamp_after: datetime | None = None
    include_artifacts: bool = False


class A2aCardRequest(_A2aRequest, frozen=True, rename="camel", kw_only=True):
    """The parameters of `GetExtendedAgentCard`."""


class A2aTaskList(Struct, frozen=True, rename="camel"):
    """A page of tasks, the last changed first."""

    tasks: tuple[A2aTask, ...]
    next_page_token: str
    page_size: int
    total_size: int


def text_part(text: str) -> A2aPart:
    """A part with a text."""
    return A2aPart(text=text)


def data_part(data: JSON) -> A2aPart:
    """A part with structured data."""
    return A2aPart(data=data, media_type="application/json")


def timestamp(seconds: float) -> str:
    """Unix seconds as ISO 8601 in UTC, with milliseconds."""
    found = datetime.fromtimestamp(seconds, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
