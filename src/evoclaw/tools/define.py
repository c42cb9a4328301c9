"""`@tool`: makes a tool of a function with annotations and a docstring."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import msgspec
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment, ToolOutput
from evoclaw.core.errors import SchemaError, ToolFailure
from evoclaw.core.messages import (
    JSON,
    Block,
    ErrorBlock,
    ErrorKind,
    ImageBlock,
    TextBlock,
    ToolResult,
)
from evoclaw.core.ports import Progress
from evoclaw.core.tools import ANY_RESOURCE, Call, Effect, Tool
from evoclaw.tools.schema import read_docstring, schema_of

BLOCK_TYPES = (TextBlock, ImageBlock, ErrorBlock)
TOOL_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def tool(
    *permissions: str,
    name: str | None = None,
    timeout: float = 10,
    max_timeout: float = 60,
    effect: str = "write",
    resources: Sequence[str] = (ANY_RESOURCE,),
    idempotent: bool = False,
    streams: bool = False,
    version: str = "1",
    aliases: Sequence[str] = (),
    outside: bool = False,
    private: bool = False,
    acts: bool | None = None,
    sends: bool = False,
    isolated: bool = False,
) -> Callable[[Callable[..., object]], BoundTool]:
    """Make a tool of a function.

    The model reads the docstring, with `Args:` for the parameters. Parameters annotated with
    `Progress`, `Call` or a Protocol are injected and not part of the schema. A function that is not
    async runs in a thread that cannot be stopped. Return text, JSON, blocks or an `Output`.

    Args:
        permissions: The capabilities that an agent needs to use it.
        name: The name of the tool; the function's name if not given.
        timeout: Seconds that a call may take.
        max_timeout: The longest timeout, in seconds, that a call may ask for.
        effect: `read` or `write`.
        resources: The parameters that name what a call touches; `("*",)` is everything.
        idempotent: Running it twice has the same effect as running it once.
        streams: It reports output while it runs.
        version: Raised when its meaning changes.
        aliases: Other names that the model may use.
        outside: Its results may contain text that outsiders wrote.
        private: Its results contain private data.
        acts: It has effects beyond the conversation and the workspace; None: if it writes.
        sends: It sends its arguments to where outsiders may read them.
        isolated: For a file in the folder of own tools: run it in a sandboxed process.
    """
    _check_brackets(permissions)

    def define(function: Callable[..., object]) -> BoundTool:
        title = name or getattr(function, "__name__", "")
        made = Tool(
            title, "", {}, frozenset(permissions), _effect(title, effect), tuple(resources),
            float(timeout), float(max_timeout), idempotent, streams, 0.0, version, tuple(aliases),
            outside, private, acts, sends, isolated,
        )  # fmt: skip
        return _bind(made, function)

    return define


def _check_brackets(permissions: Sequence[object]) -> None:
    if any(callable(permission) for permission in permissions):
        raise SchemaError(str(permissions[0]), "write `@tool()`, with the brackets")


def _bind(bare: Tool, function: Callable[..., object]) -> BoundTool:
    signature = _read_signature(bare.name, function)
    made = replace(bare, description=signature.description, parameters=signature.schema)
    _check(made)
    injected = signature.injected.values()
    needs = frozenset(key for key in injected if key is not None and key is not Call)
    return BoundTool(made, _runner(signature, function), needs, function)


@dataclass(frozen=True, slots=True)
class _Signature:
    description: str
    schema: dict[str, JSON]
    arguments: type[msgspec.Struct]
    injected: Mapping[str, type | None]
    """Parameter name to the injected Protocol or `Call`; None stands for `Progress`."""


def _read_signature(title: str, function: Callable[..., object]) -> _Signature:
    documented = read_docstring(function.__doc__ or "")
    if not documented.description:
        raise SchemaError(
            title, "the function needs a docstring that tells the model what the tool does"
        )
    injected: dict[str, type | None] = {}
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    hints = _hints(title, function)
    for parameter in inspect.signature(function).parameters.values():
        annotation = _annotation(title, parameter, hints)
        if annotation == Progress:
            injected[parameter.name] = None
        elif annotation is Call or _is_protocol(annotation):
            injected[parameter.name] = annotation
        elif parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, _default(title, parameter)))
    names = tuple(field[0] for field in fields)
    unknown = sorted(documented.arguments.keys() - set(names) - injected.keys())
    if unknown:
        raise SchemaError(
            title, f"the docstring describes {unknown}, which the function does not take"
        )
    arguments = msgspec.defstruct(
        f"{title}_arguments", fields, kw_only=True, forbid_unknown_fields=True
    )
    described = {name: documented.arguments.get(name, "") for name in names}
    schema = schema_of(title, arguments, described)
    return _Signature(documented.description, schema, arguments, injected)


def _hints(title: str, function: Callable[..., object]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as problem:
        raise SchemaError(
            title, f"cannot resolve an annotation ({problem}); import its type at module level"
        ) from None


def _annotation(title: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind in (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    ):
        raise SchemaError(
            title,
            f"parameter {parameter.name!r} must be a keyword parameter, not *args, **kwargs "
            "or before /",
        )
    if parameter.name not in hints:
        raise SchemaError(title, f"parameter {parameter.name!r} has no annotation")
    return hints[parameter.name]


def _is_protocol(annotation: Any) -> TypeGuard[type]:
    return isinstance(annotation, type) and bool(getattr(annotation, "_is_protocol", False))


def _default(title: str, parameter: inspect.Parameter) -> JSON:
    try:
        msgspec.json.encode(parameter.default)
    except (TypeError, ValueError):
        raise SchemaError(
            title, f"the default of {parameter.name!r} cannot be written as JSON"
        ) from None
    return parameter.default


def _effect(title: str, effect: str) -> Effect:
    if effect not in list(Effect):
        raise SchemaError(title, f"effect {effect!r} is neither 'read' nor 'write'")
    return Effect(effect)


def _check(made: Tool) -> None:
    if not TOOL_NAME_PATTERN.fullmatch(made.name):
        raise SchemaError(
            made.name,
            "invalid name: use a letter or '_', then up to 63 letters, digits, '_' or '-'",
        )
    if not 0 < made.timeout <= made.max_timeout:
        raise SchemaError(made.name, "timeout must be greater than 0 and at most max_timeout")
    unknown = [
        name
        for name in made.resources
        if name != ANY_RESOURCE and name not in made.parameters["properties"]
    ]
    if unknown:
        raise SchemaError(made.name, f"resources {unknown} are not among its parameters")


def _runner(
    signature: _Signature, function: Callable[..., object]
) -> Callable[[Call, ToolEnvironment], Awaitable[ToolResult]]:
    is_async = inspect.iscoroutinefunction(function)

    async def run(call: Call, machine: ToolEnvironment) -> ToolResult:
        arguments = _convert(call, signature)
        for parameter, key in signature.injected.items():
            arguments[parameter] = _dependency(key, call, machine)
        if is_async:
            answer = await cast("Awaitable[object]", function(**arguments))
        else:
            answer = await asyncio.to_thread(function, **arguments)
        return to_result(call, answer)

    return run


def _dependency(key: type | None, call: Call, machine: ToolEnvironment) -> object:
    if key is None:
        return machine.progress
    return call if key is Call else machine.dependencies[key]


def _convert(call: Call, signature: _Signature) -> dict[str, Any]:
    try:
        try:
            struct = msgspec.convert(call.arguments, signature.arguments)
        except msgspec.ValidationError:
            # JSON Schema calls 3.0 an integer; msgspec does not.
            struct = msgspec.convert(_whole_floats_to_int(call.arguments), signature.arguments)
    except msgspec.ValidationError as problem:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, f"Invalid parameters for '{call.name}': {problem}."
        ) from None
    return msgspec.structs.asdict(struct)


def _whole_floats_to_int(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {
            key: _whole_floats_to_int(item) for key, item in cast("dict[str, JSON]", value).items()
        }
    if isinstance(value, list):
        return [_whole_floats_to_int(item) for item in cast("list[JSON]", value)]
    return value


def to_result(call: Call, answer: object) -> ToolResult:
    """Convert the return value of a tool function to the result of the call."""
    if isinstance(answer, str):
        return ToolResult(call.id, call.name, (TextBlock(replace_surrogates(answer)),))
    if isinstance(answer, ToolResult):
        return ToolResult(
            call.id, call.name, _clean(answer.blocks), answer.error, details=answer.details
        )
    if isinstance(answer, ToolOutput):
        return ToolResult(call.id, call.name, _clean(answer.blocks), details=answer.details)
    return ToolResult(call.id, call.name, _clean(_blocks(call, answer)))


def _blocks(call: Call, answer: object) -> tuple[Block, ...]:
    if answer is None:
        return (TextBlock("done"),)
    if isinstance(answer, BLOCK_TYPES):
        return (answer,)
    if _are_blocks(answer):
        return tuple(answer)
    try:
        return (TextBlock(msgspec.json.encode(answer).decode()),)
    except (TypeError, ValueError) as problem:
        raise ToolFailure(
            ErrorKind.INTERNAL,
            f"Tool '{call.name}' ran, but its answer cannot be shown ({problem}). "
            "Do not repeat the call; explain this to the user.",
        ) from None


def _are_blocks(answer: object) -> TypeGuard[Sequence[Block]]:
    if not isinstance(answer, (list, tuple)) or not answer:
        return False
    items = cast("Sequence[object]", answer)
    return all(isinstance(item, BLOCK_TYPES) for item in items)


def _clean(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(
        [
            TextBlock(replace_surrogates(block.text), block.label)
            if isinstance(block, TextBlock)
            else block
            for block in blocks
        ]
    )


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates (of undecodable file names) replaced by `�`: valid JSON."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
