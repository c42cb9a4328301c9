"""The documented JSON: commands go to an edge; reports, status and adverts come from it.

Encoding is strict, decoding is lenient: unknown fields are ignored and older shapes are accepted.
An unreadable message raises `WireError`, which carries the request id if it has one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from evoclaw.core.encoding import json_digest
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.core.tools import Tool

WIRE_VERSION = 1
"""The protocol version. An edge and an orchestrator are compatible if their ranges overlap."""
MAX_REQUEST_ID_CHARS = 200
MAX_MODEL_NAME_CHARS = 200
MAX_HOPS = 3
"""Agents that may have delegated a command."""
DEFAULT_JOB_TIMEOUT_S, MAX_JOB_TIMEOUT_S = 3600.0, 86_400.0
"""The default and the maximum timeout of a job, in seconds."""
RESULT_KEYS = ("result", "content")
"""The keys under which an outcome has its text; the first one counts."""
T = TypeVar("T")
Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""64 hexadecimal digits, in lower case."""
ByteCount: TypeAlias = Annotated[int, Meta(ge=0)]
ModelName: TypeAlias = Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)]


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
    """What to do."""
    payload: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    """The arguments of the command; `request_id` may be here too."""
    request_id: str = field(default_factory=str)
    """Chosen by the sender, and unique: a command with the same id is the same command."""
    expires_at: float | None = None
    """Unix seconds by the orchestrator's clock; the command is not started later."""
    v: int = field(default_factory=_version)
    """The protocol version."""
    run_id: str = ""
    """The run that asks for it."""
    tenant: str = ""
    """The tenant of the run; empty for the only one."""
    epoch: int = 0
    """The epoch of the run's owner: an edge refuses a lower epoch than it has seen."""
    hops: int = 0
    """The number of agents that delegated it."""
    path: list[str] = []
    """The edges whose models passed it on, first to last; none of them may get it again."""
    args_sha256: str = ""
    """The hash of the canonical arguments; refused if they differ."""
    queue_ttl_ms: int | None = None
    """How long it may wait before it starts, in milliseconds."""
    max_output_bytes: int | None = None
    """Reserved: no effect yet."""
    reply_to: str = ""
    """Reserved: answers go to the topic of reports."""
    traceparent: str = ""
    """The W3C trace context of the call."""
    label: Label = CLEAN
    """The label of everything that the model had seen when it made the call."""
    grant: str = ""
    """Signed by the orchestrator: it covers every other field of the command."""


class ToolPayload(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `tool`."""

    tool: str
    parameters: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    """The arguments of the tool."""
    timeout_ms: float | None = None
    """How long it may run; at most what its tool allows."""
    stream: bool = False
    """Report the output in chunks while it runs."""
    background: bool = False
    """Run as a job: acknowledged at once, its result is reported when it has ended."""
    idle_ms: float | None = None
    """A job that writes no output for so long is ended."""


class ReportType(StrEnum):
    """The type of a report."""

    RESULT = "result"
    """A command succeeded."""
    ERROR = "error"
    """A command failed or was refused."""
    CHUNK = "chunk"
    """A piece of the output of a running call."""
    PROGRESS = "progress"
    """A command was accepted, or still runs."""
    HEARTBEAT = "heartbeat"
    """The edge is online."""
    METRIC = "metric"
    """A measurement; counted, not stored."""
    HELLO = "hello"
    """The edge connected, or was asked to say hello."""
    JOIN = "join"
    """A new edge exchanges its one-time token for a password."""
    CALL = "call"
    """A nested call: the model that answers a prompt calls a tool that the prompt named."""


class Report(Struct, frozen=True):
    """A message from an edge."""

    agent_id: str
    """The edge; the same as in the topic."""
    agent_type: str
    report_type: ReportType
    payload: dict[str, JSON]
    """One of the payloads below, by the type of the report."""
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
    """The command that it answers."""
    status: str = ""
    """`success` or `error`; default: by the type of the report."""
    tool: str = ""
    """The tool, or the command."""
    result: JSON = ""
    """The text of the result; `content` is read too. A success without either is an error."""
    stderr: str = ""
    exit_code: int | None = None
    elapsed_ms: float = 0
    """How long it ran."""
    error: str = ""
    """What went wrong, for the model and for people."""
    error_type: str = ""
    """One of the error types."""
    truncated: bool = False
    """Whether the result is only a part; the edge stores the rest."""
    blocks: list[JSON] | None = None
    """The result as blocks, if it is more than one text."""
    label: Label = CLEAN
    """The label of the result's content."""
    details: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    """Facts about the call, such as the sandbox."""
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
    """Counts the chunks of the call, so that a repeated one is ignored."""
    text: str


class CallProgress(Struct, frozen=True, omit_defaults=True):
    """The payload of a `progress` report: a command was accepted, or still runs."""

    request_id: str
    state: str
    """`accepted` or `running`."""
    text: str = ""
    """For people."""


class NestedCall(Struct, frozen=True, omit_defaults=True):
    """The payload of a `call` report: the model that answers a prompt calls a tool.

    The key `tools` of the prompt's payload names the tools, which the orchestrator runs. The
    command `nested_result` has the result.
    """

    prompt_id: str
    """The request id of the prompt."""
    number: int
    """Counts the nested calls of the prompt; the same when the report is repeated."""
    tool: str
    parameters: dict[str, JSON] = field(default_factory=lambda: dict[str, JSON]())
    timeout_ms: float | None = None


class NestedResult(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `nested_result`: the result of a nested call."""

    prompt_id: str
    number: int
    outcome: dict[str, JSON]
    """As in a `result` or `error` report."""


class ModelPush(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `model_push`: a step of the copy of a model file to an edge.

    `start` opens the push and `status` asks about it. `chunk` has a part of the file, which may
    come twice. Every step is answered with the status of the push.
    """

    action: Literal["start", "chunk", "status"]
    """Which step it is."""
    sha256: Sha256
    """The digest of the whole file."""
    name: ModelName = ""
    """Of `start`: a name for the model, if the edge does not know the digest; at most 200
    characters."""
    total_bytes: ByteCount = 0
    """Of `start`: the size of the whole file."""
    offset: ByteCount = 0
    """Of `chunk`: where it begins."""
    data: str = ""
    """Of `chunk`: its bytes, in base64."""
    data_sha256: str = ""
    """Of `chunk`: the digest of its bytes."""


class ModelPushStatus(Struct, frozen=True, omit_defaults=True):
    """The answer to `model_push`: how far the push is."""

    state: Literal["waiting", "opening", "receiving", "verifying", "installed"]
    """`waiting`: another command on the machine of the edge installs the same model. `opening`: the
    edge reads what an earlier push has left."""
    have_bytes: int = 0
    """How much of the file the edge has; the next chunk begins there."""
    name: str = ""
    """Of `installed`: the name that the model has there."""
    was_installed: bool = False
    """Of `installed`: whether the model was there before this push."""


class Hello(Struct, frozen=True):
    """The payload of a `hello` report, sent on every connect and when asked to."""

    boot_id: str
    """Chosen when the process of the edge starts."""
    counter: int
    """Counts the connections of this boot."""
    tools_hash: str = ""
    """Reserved: the advert has the hashes."""
    running: list[str] = []
    """Commands that were received and have not ended."""
    finished: list[str] = []
    """Commands that ended and whose result was not acknowledged."""
    v_min: int = WIRE_VERSION
    """The oldest version that it speaks."""
    v_max: int = WIRE_VERSION
    """The newest version that it speaks."""
    room: int | None = None
    """Free capacity in commands; None if the edge does not report it."""
    journal: str = ""
    """The id of the edge's journal; a new id means that earlier calls are forgotten."""
    heartbeat_s: float | None = None
    """Seconds between two heartbeats; None if the edge does not report it."""
    asked: float | None = None
    """When the hello was sent, by the sender's monotonic clock; the welcome echoes it."""
    damage: str = ""
    """What of the edge's own data was damaged and set aside, for people; empty if nothing is."""


class Welcome(Struct, frozen=True, omit_defaults=True):
    """The payload of the command `welcome`: an orchestrator's answer to `hello`."""

    boot_id: str
    """Echoed from the hello, like `counter`."""
    counter: int
    now: float
    """The orchestrator's clock; deadlines are judged by it."""
    asked: float | None = None
    """When the answered hello was sent, echoed from it."""
    acks: list[str] = []
    """Commands whose result is stored: the edge forgets it."""
    cancels: list[str] = []
    """Commands that are no longer wanted."""


class Heartbeat(Struct, frozen=True):
    """The payload of a `heartbeat` report."""

    boot_id: str = ""
    """Empty for an edge that speaks only the basic messages: no hello, no resending."""
    counter: int = 0
    in_flight: int = 0
    """Calls that run."""
    queued: int = 0
    """Calls that wait."""
    room: int | None = None
    """Free capacity in commands; None if the edge does not report it."""
    cpu_percent: float = 0.0
    memory_mb: float = 0.0
    uptime_s: float = 0.0


class Status(Struct, frozen=True):
    """Birth and will: retained, so that a new orchestrator learns which edges were online."""

    agent_id: str
    status: str
    """`online` or `offline`; another word, or none, is a sign of life too."""
    boot_id: str = ""
    counter: int = 0
    """Counts the connections of this boot; the will of an older connection is ignored."""


class AdvertisedTool(Struct, frozen=True):
    """A tool in an advert; its schema is fetched when the hash is unknown."""

    name: str
    version: str = ""
    hash: str = ""
    """Changes when the tool changes."""


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
    """The version of EvoClaw."""
    llm: bool = False
    """Whether it answers prompts; an edge whose advert has no `v` does."""
    tools: list[AdvertisedTool] = []
    """Their schemas are fetched with `tools_list`."""
    genome: str = ""
    """The digest of its genome; it is published again when that changes."""


_COMMANDS, _REPORTS = msgspec.json.Decoder(Command), msgspec.json.Decoder(Report)
"""For messages as this version writes them; others are read leniently."""


def read_command(data: bytes) -> Command:
    """Read a command; a request id inside the payload counts too."""
    try:
        command = _COMMANDS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_lenient_command(data)
    if command.v != WIRE_VERSION or not 0 < len(command.request_id) <= MAX_REQUEST_ID_CHARS:
        return _read_lenient_command(data)
    return command


def _read_lenient_command(data: bytes) -> Command:
    raw = _object(data)
    payload = raw.get("payload")
    inner = payload.get("request_id") if is_object(payload) else None
    request_id = raw.get("request_id") or inner or ""
    if not isinstance(request_id, str) or len(request_id) > MAX_REQUEST_ID_CHARS:
        raise WireError(ErrorKind.INVALID_PARAMS, "the request_id must be a short text")
    version = raw.get("v", WIRE_VERSION)
    if version != WIRE_VERSION:
        problem = (
            f"protocol version {version!r} is not supported; this edge supports {WIRE_VERSION}"
        )
        raise WireError(ErrorKind.VERSION_MISMATCH, problem, request_id)
    raw["expires_at"] = _seconds(raw.get("expires_at"))
    raw["request_id"] = request_id
    return convert(raw, Command, request_id)


def read_report(agent_id: str, data: bytes) -> Report:
    """Read a report from this agent's topic; a bare result, or a payload of text, is accepted."""
    try:
        report = _REPORTS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        report = _read_lenient_report(agent_id, data)
    if report.agent_id != agent_id:
        problem = f"a report on {agent_id!r}'s topic claims to be from {report.agent_id!r}"
        raise WireError(ErrorKind.CONFLICT, problem, report.request_id)
    return report


def _read_lenient_report(agent_id: str, data: bytes) -> Report:
    raw = _object(data)
    if "report_type" not in raw and _is_bare_outcome(raw):
        kind = ReportType.ERROR if raw.get("status") == "error" else ReportType.RESULT
        raw = {"report_type": str(kind), "payload": raw}
    if isinstance(text := raw.get("payload"), str):
        raw["payload"] = {"result": text}
    stamp = _seconds(raw.get("timestamp"))
    defaults: dict[str, JSON] = {"agent_id": agent_id, "agent_type": "", "payload": {}}
    return convert({**defaults, **raw, "timestamp": stamp}, Report)


def read_status(agent_id: str, data: bytes) -> Status:
    """Read a birth or a will."""
    status = convert({"agent_id": agent_id, "status": "online", **_object(data)}, Status)
    if status.agent_id != agent_id:
        raise WireError(
            ErrorKind.CONFLICT, f"a status on {agent_id!r}'s topic is from another agent"
        )
    return status


def read_heartbeat(report: Report) -> Heartbeat:
    """Read a heartbeat; one without a boot id may have any payload, and is a sign of life."""
    try:
        return convert(report.payload, Heartbeat)
    except WireError:
        if report.payload.get("boot_id"):
            raise
        return Heartbeat()


def read_advert(agent_id: str, data: bytes) -> Advert:
    """Read an advert; an edge whose advert has no version answers prompts."""
    raw = _object(data)
    defaults: dict[str, JSON] = {"agent_id": agent_id, "llm": "v" not in raw}
    advert = convert({**defaults, **raw}, Advert)
    if advert.agent_id != agent_id:
        raise WireError(
            ErrorKind.CONFLICT, f"an advert on {agent_id!r}'s topic is from another agent"
        )
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


_LOOSE = ("request_id", "timeout_ms", "idle_ms", "stream", "background", "tools")
"""The payload keys that say how a command is run, not what it does."""


def fingerprint(command: Command) -> str:
    """The digest that two commands with the same id must share: the action and its arguments."""
    content = {key: value for key, value in command.payload.items() if key not in _LOOSE}
    return json_digest([command.command, content])


_GRANTED_ELSEWHERE = ("payload", "grant", "request_id", "run_id", "tenant", "epoch")
"""The fields of a command for which a grant has fields of its own."""


def signed_fields(command: Command) -> dict[str, JSON]:
    """The fields of a command that its grant repeats as they are; defaults are left out."""
    fields: dict[str, JSON] = msgspec.to_builtins(command)
    return {name: value for name, value in fields.items() if name not in _GRANTED_ELSEWHERE}


def changed_fields(command: Command, signed: dict[str, JSON]) -> list[str]:
    """The fields of a command that differ from the signed ones.

    Signed fields that this version does not know are ignored, as in the command itself.
    """
    granted = signed_fields(convert({"command": "", **signed}, Command, command.request_id))
    claimed = signed_fields(command)
    return sorted(
        name for name in granted.keys() | claimed.keys() if granted.get(name) != claimed.get(name)
    )


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
    return json_digest(tool)[:16]


def _is_bare_outcome(raw: dict[str, JSON]) -> bool:
    """Whether an object is the payload of a result or error, without the report around it."""
    return raw.get("status") in ("success", "error") or any(key in raw for key in RESULT_KEYS)


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
            raise WireError(ErrorKind.INVALID_PARAMS, f"{value!r} is not a time") from None
    return value
