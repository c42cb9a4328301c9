"""Build one reply from the pieces that a server streams."""

from __future__ import annotations

from uuid import uuid4

import msgspec

from evoclaw.core.errors import ProviderErrorKind
from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.core.messages import Finish, Reply, ToolCall, Usage
from evoclaw.providers.errors import AttemptFailed


class _CallDraft:
    """A call that is still being streamed."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a JSON object: what follows belongs to another call."""
        return is_json_object("".join(self.arguments))

    def to_call(self) -> ToolCall:
        """The finished call; one without an id gets a new one."""
        call_id = self.id or f"call_{uuid4().hex[:12]}"
        return ToolCall(call_id, self.name, "".join(self.arguments).strip() or "{}")


class ReplyBuilder:
    """Collects the pieces of a reply."""

    __slots__ = (
        "_by_index",
        "_drafts",
        "_reasoning",
        "_text",
        "ended",
        "finish",
        "model",
        "usage",
    )

    def __init__(self, model: str) -> None:
        self.model = model
        """The requested model, until the server names the one that it used."""
        self.usage = Usage()
        self.finish: Finish | None = None
        self.ended = False
        """Whether the server ended the stream."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._drafts: list[_CallDraft] = []
        self._by_index: dict[int, _CallDraft] = {}

    def add_text(self, text: str) -> TextDelta:
        """Add text."""
        self._text.append(text)
        return TextDelta(text)

    def add_reasoning(self, text: str) -> ReasoningDelta:
        """Add reasoning."""
        self._reasoning.append(text)
        return ReasoningDelta(text)

    def add_call(self, index: int | None, call_id: str, name: str, arguments: str) -> None:
        """Add a piece of a call to the call it belongs to."""
        draft = self._find(index, call_id, name, arguments)
        if draft is None:
            draft = _CallDraft()
            self._drafts.append(draft)
            if index is not None:
                self._by_index[index] = draft
        draft.id = draft.id or call_id
        if name != draft.name and not draft.arguments:
            draft.name += name  # some servers repeat the name, others send it in pieces
        if arguments:
            draft.arguments.append(arguments)

    def _find(
        self, index: int | None, call_id: str, name: str, arguments: str
    ) -> _CallDraft | None:
        """The call that a piece continues; None if it starts a new call.

        Servers omit the index, the id or both, give every call index 0, and repeat the name or
        make up a new id in each piece. A new call always has a name.
        """
        draft = self._named(call_id) if index is None else self._by_index.get(index)
        if draft is None or not name:
            return draft
        if call_id and draft.id and call_id != draft.id:
            return None
        if call_id and call_id == draft.id:
            return draft
        if draft.arguments and name != draft.name:
            return None
        return None if arguments.strip() and draft.is_complete else draft

    def _named(self, call_id: str) -> _CallDraft | None:
        if call_id:
            for draft in self._drafts:
                if draft.id == call_id:
                    return draft
        return self._drafts[-1] if self._drafts else None

    @property
    def is_complete(self) -> bool:
        """Whether the reply is complete."""
        if self.finish is not None:
            return True
        if not self.ended or not (self._text or self._drafts):
            return False
        return all(draft.is_complete for draft in self._drafts)

    def incomplete_error(self) -> AttemptFailed:
        """The error for a stream that ended without a complete reply."""
        if self.ended or not (self._text or self._drafts or self._reasoning):
            message = "the server sent an empty reply without choices"
        else:
            message = "the stream ended before the reply was complete"
        return AttemptFailed(ProviderErrorKind.SERVER_ERROR, message)

    def build(self) -> Reply:
        """The complete reply, without its cost."""
        calls = tuple(draft.to_call() for draft in self._drafts)
        finish = self.finish or Finish.STOP
        # Some servers do not report that they stopped for calls, others do without any call.
        if finish in (Finish.STOP, Finish.CALLS):
            finish = Finish.CALLS if calls else Finish.STOP
        return Reply(
            text="".join(self._text),
            calls=calls,
            finish=finish,
            usage=self.usage,
            model=self.model,
            reasoning="".join(self._reasoning),
        )


def is_json_object(text: str) -> bool:
    """Whether text is one JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
