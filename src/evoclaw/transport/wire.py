"""The documented JSON: commands go to an edge; reports, status and adverts come from it.

Encoding is strict, decoding is lenient: unknown fields are ignored and older shapes are accepted.
An unreadable message raises `WireError`, which carries the request id if it has one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.core.tools import Tool

WIRE_VERSION = 1
"""The protocol version. An edge and an orchestrator are compatible if their ranges overlap."""
MAX_REQUEST_ID_CHARS = 200
DEFAULT_JOB_TIMEOUT_S, MAX_JOB_TIMEOUT_S = 3600.0, 86_400.0
"""The default and the maximum timeout of a job, in seconds."""
T = TypeVar("T")


class WireError(EvoClawError):
    """An invalid message; counted and dropped, or answered if possible."""

    def __init__(self, kind: ErrorKind, problem: str, request_id: str = "") -> None:
        super().__init__(problem)
        self.kind, self.request_id = kind, request_id


def _version() -> int:
    return WIRE_VERSION


class Command(Struct, frozen=True, omit_defaults=True):
    """A command to an edge."""

    command: str
    payload: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    request_id: str = field(default_factory=str)
    expires_at: float | None = None
    """Unix seconds by the orchestrator's clock; the command is not started later."""
    v: int = field(default_factory=_version)
    run_id: str = ""
    tenant: str = ""
    epoch: int = 0
    """The epoch of the run's owner: an edge refuses a lower epoch than it has seen."""
    hops: int = 0
    """The number of agents that delegated it."""
    args_sha256: str = ""
    queue_ttl_ms: int | None = None
    max_output_bytes: int | None = None
    reply_to: str = ""
    traceparent: str = ""
    label: Label = CLEAN
    """The label of everything that the model had seen when it made the call."""
    grant: str = ""
    """Signed by the orchestrator: the principal, the tool, its arguments and the expiry."""


class ToolPayload(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `tool`."""

    tool: str
    parameters: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    timeout_ms: float | None = None
    stream: bool = False
    background: bool = False
    """Run as a job: acknowledged at once, its result is reported when it has ended."""
    idle_ms: float | None = None
    """A job that writes no output for so long is ended."""


class ReportType(StrEnum):
    """The type of a report."""

    RESULT = "result"
    ERROR = "error"
    CHUNK = "chunk"
    PROGRESS = "progress"
    HEARTBEAT = "heartbeat"
    METRIC = "metric"
    HELLO = "hello"
    JOIN = "join"


class Report(Struct, frozen=True):
    """A message from an edge."""

    agent_id: str
    agent_type: str
    report_type: ReportType
    payload: dict[str, JSON]
    timestamp: float | None = None
    """Unix seconds by the edge's clock: for display, never for a decision."""

    @property
    def request_id(self) -> str:
        """The command it answers, if any."""
        given = self.payload.get("request_id")
        return given if isinstance(given, str) else ""


class Outcome(Struct, frozen=True):
    """The payload of a `result` or `error` report: how a command ended."""

    request_id: str = ""
    status: str = ""
    tool: str = ""
    result: JSON = ""
    stderr: str = ""
    exit_code: int | None = None
    elapsed_ms: float = 0
    error: str = ""
    error_type: str = ""
    truncated: bool = False
    blocks: list[JSON] | None = None
    label: Label = CLEAN
    """The label of the result's content."""
    details: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    refuses: str = ""
    """Of a refusal: the digest of the message that it answers. Other messages with the same id may
    be accepted. A journaled outcome is about the id, and has no digest."""
    fenced: bool = False
    """Of a refusal: another orchestrator took the run over."""
    receipt: JSON = None
    """The device's signed receipt of the outcome: an object with `body` and `signature`."""
    checked: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    """The orchestrator's check of the receipt. Never from the wire: a received value is dropped."""


class OutputChunk(Struct, frozen=True):
    """The payload of a `chunk` report: a piece of a running call's output."""

    request_id: str
    seq: int
    text: str


class CallProgress(Struct, frozen=True, omit_defaults=True):
    """The payload of a `progress` report: a command was accepted, or still runs."""

    request_id: str
    state: str
    text: str = ""


class Hello(Struct, frozen=True):
    """The payload of a `hello` report, sent on every connect and when asked to."""

    boot_id: str
    counter: int
    tools_hash: str = ""
    running: list[str] = []
    """Commands that were received and have not ended."""
    finished: list[str] = []
    """Commands that ended and whose result was not acknowledged."""
    v_min: int = WIRE_VERSION
    v_max: int = WIRE_VERSION
    room: int | None = None
    """Free capacity in commands; None if the edge does not report it."""
    journal: str = ""
    """The id of the edge's journal; a new id means that earlier calls are forgotten."""
    heartbeat_s: float | None = None
    """Seconds between two heartbeats; None if the edge does not report it."""
    asked: float | None = None
    """When the hello was sent, by the sender's monotonic clock; the welcome echoes it."""


class Welcome(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `welcome`: an orchestrator's answer to `hello`."""

    boot_id: str
    counter: int
    now: float
    """The orchestrator's clock; deadlines are judged by it."""
    asked: float | None = None
    """When the answered hello was sent, echoed from it."""
    acks: list[str] = []
    cancels: list[str] = []


class Heartbeat(Struct, frozen=True):
    """The payload of a `heartbeat` report."""

    boot_id: str
    counter: int
    in_flight: int = 0
    queued: int = 0
    room: int | None = None
    """Free capacity in commands; None if the edge does not report it."""
    cpu_percent: float = 0.0
    memory_mb: float = 0.0
    uptime_s: float = 0.0


class Status(Struct, frozen=True):
    """Birth and will: retained, so that a new orchestrator learns which edges were online."""

    agent_id: str
    status: str
    boot_id: str = ""
    counter: int = 0
    """Counts the connections of this boot; the will of an older connection is ignored."""


class AdvertisedTool(Struct, frozen=True):
    """A tool in an advert; its schema is fetched when the hash is unknown."""

    name: str
    version: str = ""
    hash: str = ""


class Advert(Struct, frozen=True, omit_defaults=True):
    """An edge's description of itself, retained: untrusted text, to be displayed as such."""

    agent_id: str
    capabilities: str = ""
    """The summary: one line for people and models."""
    v: int = field(default_factory=_version)
    agent_type: str = ""
    os: str = ""
    arch: str = ""
    version: str = ""
    llm: bool = False
    tools: list[AdvertisedTool] = []


def read_command(data: bytes) -> Command:
    """Read a command; a request id inside the payload counts too."""
    raw = _object(data)
    payload = raw.get("payload")
    inner = payload.get("request_id") if is_object(payload) else None
    request_id = raw.get("request_id") or inner or ""
    if not isinstance(request_id, str) or len(request_id) > MAX_REQUEST_ID_CHARS:
        raise WireError(ErrorKind.INVALID_PARAMS, "the request_id is no short text")
    version = raw.get("v", WIRE_VERSION)
    if version != WIRE_VERSION:
        problem = (
            f"protocol version {version!r} is not spoken here; this edge speaks {WIRE_VERSION}"
        )
        raise WireError(ErrorKind.VERSION_MISMATCH, problem, request_id)
    raw["expires_at"] = _seconds(raw.get("expires_at"))
    raw["request_id"] = request_id
    return convert(raw, Command, request_id)


def read_report(agent_id: str, data: bytes) -> Report:
    """Read a report from this agent's topic; a bare result object is accepted too."""
    raw = _object(data)
    if "report_type" not in raw and raw.get("status") in ("success", "error"):
        kind = "result" if raw["status"] == "success" else "error"
        raw = {"report_type": kind, "payload": raw}
    stamp = _seconds(raw.get("timestamp"))
    defaults: dict[str, JSON] = {"agent_id": agent_id, "agent_type": "", "payload": {}}
    report = convert({**defaults, **raw, "timestamp": stamp}, Report)
    if report.agent_id != agent_id:
        problem = f"a report on {agent_id!r}'s topic claims to be from {report.agent_id!r}"
        raise WireError(ErrorKind.CONFLICT, problem, report.request_id)
    return report


def read_status(agent_id: str, data: bytes) -> Status:
    """Read a birth or a will."""
    status = convert({"agent_id": agent_id, **_object(data)}, Status)
    if status.agent_id != agent_id:
        raise WireError(ErrorKind.CONFLICT, f"a status on {agent_id!r}'s topic is another's")
    return status


def read_advert(agent_id: str, data: bytes) -> Advert:
    """Read an advert."""
    advert = convert({"agent_id": agent_id, **_object(data)}, Advert)
    if advert.agent_id != agent_id:
        raise WireError(ErrorKind.CONFLICT, f"an advert on {agent_id!r}'s topic is another's")
    return advert


def encode(message: Command | Report | Status | Advert) -> bytes:
    """Write a message."""
    return msgspec.json.encode(message)


def as_payload(value: Struct) -> dict[str, JSON]:
    """A payload's struct as a JSON object."""
    return msgspec.to_builtins(value)


def convert(value: JSON, shape: type[T], request_id: str = "") -> T:
    """Convert a JSON value to a type; raise `WireError` with the problem."""
    try:
        return msgspec.convert(value, shape)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise WireError(ErrorKind.INVALID_PARAMS, str(problem), request_id) from None


def digest(value: JSON) -> str:
    """The SHA-256 of a JSON value, the same whatever the order of its keys."""
    return sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


_LOOSE = ("request_id", "timeout_ms", "idle_ms", "stream", "background")
"""The payload keys that say how a command is run, not what it does."""


def fingerprint(command: Command) -> str:
    """The digest that two commands with the same id must share: the action and its arguments."""
    content = {key: value for key, value in command.payload.items() if key not in _LOOSE}
    return digest([command.command, content])


def arguments_of(command: Command) -> JSON:
    """A command's arguments: those of the tool, or the whole payload."""
    named = {"tool": "parameters", "execute": "params"}.get(command.command)
    if named is None:
        return command.payload
    arguments = command.payload.get(named, command.payload.get("parameters"))
    return arguments if is_object(arguments) else {}


def message_hash(data: bytes) -> str:
    """The digest of a message as it was sent."""
    return sha256(data).hexdigest()[:32]


def tool_hash(tool: Tool) -> str:
    """The hash of a tool's description; changes when the tool changes."""
    return digest(tool)[:16]


def _object(data: bytes) -> dict[str, JSON]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise WireError(ErrorKind.INVALID_PARAMS, f"not JSON: {problem}") from None
    if not is_object(value):
        raise WireError(ErrorKind.INVALID_PARAMS, "not a JSON object")
    return value


def _seconds(value: JSON) -> float | None:
    """Unix seconds, from a number or an ISO 8601 text."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise WireError(ErrorKind.INVALID_PARAMS, f"{value!r} is no time") from None
    return value
