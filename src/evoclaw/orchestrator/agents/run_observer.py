"""A sink that makes observations for the memory from the records of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from evoclaw.core.events import (
    DELTA_EVENTS,
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Prompted,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunStarted,
    StopReason,
    ToolsChanged,
)
from evoclaw.core.labels import CLEAN
from evoclaw.core.messages import (
    JSON,
    Message,
    Reply,
    SystemMessage,
    ToolResult,
    UserMessage,
    label_of,
)
from evoclaw.core.ports import Decision
from evoclaw.core.redaction import Redactor, secret_fields_of
from evoclaw.core.tools import Tool
from evoclaw.store.memory import EventType, Observation

PRIVATE_TAG = "private"
"""The tag of observations that are never stored."""
MAX_ARGUMENT_CHARS = 500
"""Of one text in a call's arguments."""
_TAG = re.compile(r"<\s*(/?)\s*private\b[^>]{0,200}>", re.IGNORECASE)
_FAILED = frozenset(
    {
        StopReason.ERROR,
        StopReason.MAX_ITERATIONS,
        StopReason.BUDGET_EXCEEDED,
        StopReason.DURATION_EXCEEDED,
        StopReason.LOOP_DETECTED,
    }
)


class RunObserver:
    """Makes observations of one run; it receives every record once, in order.

    Each has the label of everything that the run had read by then. After a private text, all later
    observations are tagged private too, as they may repeat it in other words.
    """

    def __init__(
        self,
        session_id: str,
        agent: str,
        keep: Callable[[Observation], None],
        *,
        redactor: Redactor,
        max_chars: int,
        records: Iterable[Record] = (),
    ) -> None:
        """Start with the known records of the run.

        Args:
            session_id: The session of the run.
            agent: The agent of the run.
            keep: Called with each observation; it must not block. It removes secrets.
            redactor: Removes secrets where a text is cut before that.
            max_chars: Of one observation, about.
            records: The records before the run was resumed.
        """
        self._session_id, self._agent, self._keep = session_id, agent, keep
        self._redactor, self._max_chars = redactor, max_chars
        self._label, self._private = CLEAN, False
        self._asked = ""
        self._arguments: dict[str, dict[str, JSON]] = {}
        self._tools: dict[str, Tool] = {}
        for record in records:
            self.receive(record)

    def receive(self, record: Record) -> None:
        """Receive one record."""
        event = record.event
        if type(event) in DELTA_EVENTS:
            return
        match event:
            case RunStarted(messages=messages):
                for message in messages:
                    self._see(message)
            case Prompted(message=message, why=why):
                self._see(message, asks=why == "steer")
            case ToolsChanged(tools=tools):
                self._tools = {tool.name: tool for tool in tools}
            case CallStarted(call_id=call_id, arguments=arguments):
                self._arguments[call_id] = arguments
            case Replied(reply=reply):
                self._see(reply)
                self._observe(record, EventType.LLM_RESPONSE, *self._replied(reply))
            case CallFinished(result=result):
                self._see(result)
                self._observe(record, EventType.TOOL_CALL, *self._called(result))
            case _:
                self._receive_other(record)

    def _receive_other(self, record: Record) -> None:
        event = record.event
        match event:
            case ApprovalAnswered(decision=decision) if decision != Decision.PENDING:
                text = f"A person was asked, and said: {decision}. {event.reason}"
                self._observe(record, EventType.DECISION, text, {"call_id": event.call_id})
            case CallJudged(verdict="deny"):
                text = f"A call was denied: {event.reason}"
                metadata = {"call_id": event.call_id, "code": event.code}
                self._observe(record, EventType.DECISION, text, metadata)
            case ReplyFailed():
                text = f"The model gave no reply: {event.reason}"
                self._observe(record, EventType.ERROR, text, {"kind": event.kind})
            case RunFinished(stop=stop) if stop in _FAILED:
                text = f"The run ended: {stop}. {event.reason}"
                self._observe(record, EventType.ERROR, text, {"stop": str(stop)})
            case _:
                pass

    def _see(self, message: Message, *, asks: bool = True) -> None:
        """Add the label of a message to all later observations."""
        if isinstance(message, SystemMessage):
            return
        self._label = self._label | label_of(message)
        self._private = self._private or has_private(message.text)
        if isinstance(message, UserMessage) and asks:
            self._asked = message.text

    def _replied(self, reply: Reply) -> tuple[str, dict[str, JSON]]:
        names = [call.name for call in reply.calls]
        metadata: dict[str, JSON] = {
            "model": reply.model,
            "tokens": reply.usage.input + reply.usage.output,
        }
        if not names:
            task = self._redactor.text(self._asked, self._max_chars // 4)
            return f"Asked: {task}\nAnswered: {reply.text}", metadata
        text = f"{reply.text}\n" if reply.text else ""
        return f"{text}Called: {', '.join(names)}", metadata | {"calls": names}

    def _called(self, result: ToolResult) -> tuple[str, dict[str, JSON]]:
        tool = self._tools.get(result.name)
        arguments = self._redactor.value(
            self._arguments.pop(result.call_id, {}),
            None if tool is None else secret_fields_of(tool.parameters),
            limit=MAX_ARGUMENT_CHARS,
        )
        encoded = msgspec.json.encode(arguments).decode(errors="replace")[: self._max_chars // 2]
        metadata: dict[str, JSON] = {"tool": result.name, "call_id": result.call_id}
        if result.error is not None:
            metadata["error"] = str(result.error)
        return f"{result.name} {encoded}\n{result.text}", metadata

    def _observe(
        self, record: Record, kind: EventType, content: str, metadata: dict[str, JSON]
    ) -> None:
        self._keep(
            Observation(
                f"{record.run_id}.{record.seq}",
                self._session_id,
                self._agent,
                kind,
                content[: 4 * self._max_chars],
                {"run_id": record.run_id, **metadata},
                (PRIVATE_TAG,) if self._private else (),
                record.at,
                self._label,
            )
        )


def has_private(text: str) -> bool:
    """Whether a text has a part marked as private."""
    return _TAG.search(text) is not None


def without_private(text: str) -> str:
    """A text without the parts in `<private>` tags; an unclosed tag reaches to the end."""
    public: list[str] = []
    depth = at = 0
    for tag in _TAG.finditer(text):
        if not depth:
            public.append(text[at : tag.start()])
        depth = max(0, depth - 1) if tag[1] else depth + 1
        at = tag.end()
        if not depth:
            public.append("[private]")
    if not depth:
        public.append(text[at:])
    return "".join(public)
