"""A2A's JSON-RPC: reads a request, runs the operation, writes the answer or a stream of answers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from evoclaw.core.encoding import is_deeper
from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.a2a.errors import (
    A2aError,
    A2aErrorKind,
    invalid_params,
    to_a2a_error,
)
from evoclaw.orchestrator.a2a.legacy import LEGACY_METHODS, downgraded, upgraded_params
from evoclaw.orchestrator.a2a.schemas import (
    A2aCardRequest,
    A2aEvent,
    A2aGetRequest,
    A2aListRequest,
    A2aSendRequest,
    A2aTask,
    A2aTaskRequest,
)
from evoclaw.orchestrator.a2a.tasks import A2aTasks, FollowedTask, push_not_supported

T = TypeVar("T", bound=Struct)
MAX_BODY_DEPTH = 100
"""Nested objects and lists in a request."""
MAX_ID_CHARS = 500
_SUPPORTED_VERSION = re.compile(r"(1(\.0(\.\d{1,4})?)?|0\.3(\.\d{1,4})?)?")
_FREE_FORM = frozenset({"data", "metadata", "params"})
"""Fields with JSON of the client's own, in which null is a value."""
PUSH_METHODS = frozenset(
    f"{verb}TaskPushNotificationConfig{end}"
    for verb, end in (("Create", ""), ("Get", ""), ("List", "s"), ("Delete", ""))
)
RpcId: TypeAlias = str | int | None
RpcStream: TypeAlias = AsyncGenerator[bytes, None]
"""The answers of a stream, each a whole JSON-RPC response."""


class RpcCall(Struct, frozen=True):
    """A JSON-RPC request."""

    id: RpcId
    method: str
    params: dict[str, JSON]
    is_legacy: bool = False
    """Whether it is a request of A2A 0.3, which is answered in that form."""


class RpcAnswer(Struct, frozen=True):
    """A JSON-RPC response, and the status of the HTTP response that carries it."""

    body: bytes
    http_status: int = 200


class RpcRefused(EvoClawError):
    """What arrived is no request that can be run."""

    def __init__(self, id_: RpcId, error: A2aError) -> None:
        super().__init__(str(error))
        self.answer = refusal(id_, error)


def decode_json(body: bytes) -> JSON:
    """Decode a request; `A2aError` if it is no JSON, or is nested too deep."""
    try:
        value: JSON = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise A2aError(A2aErrorKind.PARSE_ERROR, f"Invalid JSON payload: {problem}.") from None
    except RecursionError:
        raise _too_deep() from None
    if is_deeper(value, MAX_BODY_DEPTH):
        raise _too_deep()
    return value


def _too_deep() -> A2aError:
    return A2aError(
        A2aErrorKind.PARSE_ERROR,
        f"Invalid JSON payload: it is nested more than {MAX_BODY_DEPTH} deep.",
    )


def check_version(version: str) -> None:
    """`A2aError` for a version of the protocol that is not supported; an empty one is 0.3."""
    if _SUPPORTED_VERSION.fullmatch(version.strip()) is None:
        raise A2aError(
            A2aErrorKind.VERSION_NOT_SUPPORTED,
            f"The A2A version {version[:40]!r} is not supported. Supported versions: 1.0, 0.3.",
        )


def read_call(body: bytes, version: str = "") -> RpcCall:
    """Read a request; `RpcRefused` if it is none."""
    try:
        value = decode_json(body)
    except A2aError as error:
        raise RpcRefused(None, error) from None
    if not is_object(value):
        batch = " Batches are not supported: send one request." if is_array(value) else ""
        raise RpcRefused(None, _invalid_request(f"The request is not a JSON object.{batch}"))
    id_: RpcId = None
    try:
        id_ = _read_id(value)
        if value.get("jsonrpc") != "2.0":
            raise _invalid_request("jsonrpc must be '2.0'.")
        method, params = value.get("method"), value.get("params")
        if not isinstance(method, str) or not method:
            raise _invalid_request("method must be the name of a method.")
        if params is not None and not is_object(params):
            raise invalid_params("params must be an object.")
        check_version(version)
    except A2aError as error:
        raise RpcRefused(id_, error) from None
    found = without_nulls(params or {})
    if method in LEGACY_METHODS:
        return RpcCall(id_, LEGACY_METHODS[method], upgraded_params(found), is_legacy=True)
    return RpcCall(id_, method, found)


def _read_id(value: dict[str, JSON]) -> RpcId:
    found = value.get("id")
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _invalid_request("id must be a text or a whole number.")
    if len(str(found)) > MAX_ID_CHARS:
        raise _invalid_request("id is too long.")
    return found


def _invalid_request(message: str) -> A2aError:
    return A2aError(A2aErrorKind.INVALID_REQUEST, message)


def without_nulls(value: dict[str, JSON]) -> dict[str, JSON]:
    """Parameters without fields that are null, which mean the same as missing ones."""

    def cleaned(item: JSON) -> JSON:
        if is_object(item):
            return without_nulls(item)
        return [cleaned(each) for each in item] if is_array(item) else item

    return {
        key: item if key in _FREE_FORM else cleaned(item)
        for key, item in value.items()
        if item is not None or key == "data"
    }


def convert_params(params: dict[str, JSON], kind: type[T], *, strict: bool = True) -> T:
    """Parameters as a struct; `A2aError` if they do not fit."""
    try:
        return msgspec.convert(params, type=kind, strict=strict)
    except msgspec.ValidationError as problem:
        raise invalid_params(f"Invalid parameters: {problem}.") from None


class JsonRpcHandler:
    """Runs the requests of one caller at one agent."""

    def __init__(
        self,
        tasks: A2aTasks,
        extended_card: Callable[[], dict[str, JSON]],
        *,
        choose_ids: bool = False,
        reply_to: dict[str, JSON] | None = None,
    ) -> None:
        """Choose whose requests these are.

        Args:
            tasks: The tasks of the caller.
            extended_card: The agent card for callers with a token.
            choose_ids: Whether clients choose the ids of new tasks, as over MQTT.
            reply_to: Where the reply goes, to be stored with a new task.
        """
        self._tasks, self._extended_card, self._choose_ids = tasks, extended_card, choose_ids
        self._reply_to = reply_to

    async def handle(self, call: RpcCall) -> RpcAnswer | RpcStream:
        """Run a request: its answer, or a stream of answers; errors are answers."""
        try:
            match call.method:
                case "SendStreamingMessage":
                    request = convert_params(call.params, A2aSendRequest)
                    followed = await self._sent(call, request)
                    length = request.configuration.history_length
                    return self._stream(call, followed, length)
                case "SubscribeToTask":
                    request = convert_params(call.params, A2aTaskRequest)
                    return self._stream(call, await self._tasks.subscribe(request))
                case _:
                    return RpcAnswer(encode_result(call.id, await self._result(call)))
        except EvoClawError as error:
            return refusal(call.id, to_a2a_error(error))

    async def _result(self, call: RpcCall) -> object:
        params = call.params
        match call.method:
            case "SendMessage":
                return await self._send(call)
            case "GetTask":
                found = await self._tasks.get(convert_params(params, A2aGetRequest))
                return _in_form_of(call, found)
            case "ListTasks" if not call.is_legacy:
                return await self._tasks.list(convert_params(params, A2aListRequest))
            case "CancelTask":
                found = await self._tasks.cancel(convert_params(params, A2aTaskRequest))
                return _in_form_of(call, found)
            case "GetExtendedAgentCard":
                convert_params(params, A2aCardRequest)
                return self._extended_card()
            case method if method in PUSH_METHODS:
                raise push_not_supported()
            case method:
                raise A2aError(
                    A2aErrorKind.METHOD_NOT_FOUND, f"There is no method {method[:100]!r}."
                )

    async def _send(self, call: RpcCall) -> object:
        request = convert_params(call.params, A2aSendRequest)
        options = request.configuration
        followed = await self._sent(call, request)
        waits = not options.return_immediately
        task = await (self._tasks.result if waits else self._tasks.shown)(
            followed, options.history_length
        )
        return _in_form_of(call, task) if call.is_legacy else A2aEvent(task=task)

    async def _sent(self, call: RpcCall, request: A2aSendRequest) -> FollowedTask:
        stored = self._reply_to
        if stored is not None:
            stored = {**stored, "id": call.id, "method": call.method}
        return await self._tasks.send(request, choose_id=self._choose_ids, reply_to=stored)

    async def reply_again(
        self, followed: FollowedTask, reply_to: dict[str, JSON]
    ) -> RpcAnswer | RpcStream:
        """The reply to a request that was taken before a restart."""
        call = RpcCall(reply_to.get("id"), str(reply_to.get("method", "")), {})
        if call.method == "SendStreamingMessage":
            return self._stream(call, followed)
        task = await self._tasks.result(followed)
        return RpcAnswer(encode_result(call.id, A2aEvent(task=task)))

    async def _stream(
        self, call: RpcCall, followed: FollowedTask, history_length: int | None = None
    ) -> RpcStream:
        try:
            async with aclosing(self._tasks.events(followed, history_length)) as events:
                async for event in events:
                    yield encode_result(call.id, _in_form_of(call, event))
        except EvoClawError as error:
            yield encode_error(call.id, to_a2a_error(error))


def _in_form_of(call: RpcCall, found: A2aEvent | A2aTask) -> object:
    return downgraded(found) if call.is_legacy else found


def encode_result(id_: RpcId, result: object) -> bytes:
    """A JSON-RPC response with a result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": result})


def refusal(id_: RpcId, error: A2aError) -> RpcAnswer:
    """The answer to a request that was refused; only a missing scope shows in the HTTP status."""
    status = error.kind.http_status if error.kind is A2aErrorKind.FORBIDDEN else 200
    return RpcAnswer(encode_error(id_, error), status)


def encode_error(id_: RpcId, error: A2aError) -> bytes:
    """A JSON-RPC response with an error."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "error": error.jsonrpc})
