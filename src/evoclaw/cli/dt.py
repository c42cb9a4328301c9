"""`dt-read --path=…`: a built-in tool as a program, by hand or from a script."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.terminal_text import clean
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorBlock, ImageBlock, TextBlock, ToolResult, is_object
from evoclaw.core.schema import compile_schema, describe_problems
from evoclaw.core.tools import Call, Tool
from evoclaw.skills.desktop_tools import PREFIX, stdin_parameter

MAX_INPUT_BYTES = 64 << 20
_WORD = " word"
"""The positional argument that may replace standard input; no parameter has this name."""


def dt(program: str, words: Sequence[str]) -> int:
    """Run one tool once, in the current folder or in `EVOCLAW_WORKSPACE`.

    Args:
        program: `dt-` and the tool's name.
        words: The command line.
    """
    from evoclaw.tools.catalogue import load
    from evoclaw.tools.sets import TOOL_NAMES

    name = program.removeprefix(PREFIX)
    if name not in TOOL_NAMES:
        return _print_error(
            f"{program}: unknown tool; available tools: {', '.join(sorted(TOOL_NAMES))}"
        )
    (bound,) = load([name])
    arguments = _arguments(program, bound.tool, words)
    if problems := describe_problems(compile_schema(bound.tool), arguments):
        return _print_error(f"{program}: {problems}; see {program} --help")
    try:
        return asyncio.run(_run(bound, arguments))
    except EvoClawError as error:
        return _print_error(f"{program}: {error}")
    except KeyboardInterrupt:
        return exits.CANCELLED


async def _run(bound: BoundTool, arguments: dict[str, JSON]) -> int:
    from evoclaw.wiring.toolbox import open_toolbox

    workspace = Path(os.environ.get("EVOCLAW_WORKSPACE") or Path.cwd())
    async with open_toolbox(workspace, os.environ) as toolbox:
        for tool in toolbox.unavailable:
            if tool.name == bound.name:
                return _print_error(f"{PREFIX}{bound.name}: {tool.why}")
        return await _call_tool(bound, arguments, toolbox.dependencies)


async def _call_tool(
    bound: BoundTool, arguments: dict[str, JSON], dependencies: Mapping[type, object]
) -> int:
    from evoclaw.executors.local import LocalExecutor

    executor, tool = LocalExecutor([bound], given=dependencies), bound.tool
    timeout_ms = arguments.get("timeout_ms")
    seconds = timeout_ms / 1000 if isinstance(timeout_ms, int) else tool.timeout
    call = Call("by-hand", tool, arguments, "by-hand.1.0.1", min(seconds, tool.max_timeout))
    try:
        async with asyncio.timeout(call.timeout):
            return _print(await executor.execute(call, _ignore))
    except ToolFailure as failure:
        sys.stderr.write(clean(failure.message) + "\n")
    except TimeoutError:
        sys.stderr.write(f"The call timed out after {call.timeout:g} s and was stopped.\n")
    return exits.FAILED


def _ignore(_: str) -> None:
    """Ignore partial output: the whole output is printed at the end."""


def _print(result: ToolResult) -> int:
    for block in result.blocks:
        match block:
            case TextBlock(text):
                # A terminal would execute control sequences; a pipe does not.
                shown = clean(text) if sys.stdout.isatty() else text
                sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")
            case ImageBlock(media_type, data):
                sys.stdout.write(f"data:{media_type};base64,{data}\n")
            case ErrorBlock(_, text):
                sys.stderr.write(clean(text) + "\n")
    return exits.FAILED if result.error else exits.OK


def _print_error(text: str) -> int:
    sys.stderr.write(clean(text) + "\n")
    return exits.MISUSED


def _arguments(program: str, tool: Tool, words: Sequence[str]) -> dict[str, JSON]:
    parsed = vars(parser_of(program, tool).parse_args(words))
    by_word = parsed.pop(_WORD, None)
    arguments: dict[str, JSON] = {key: value for key, value in parsed.items() if value is not None}
    by_stdin = stdin_parameter(tool)
    if by_stdin is not None and by_word is not None:
        arguments.setdefault(by_stdin, by_word)
    if by_stdin is not None and by_stdin not in arguments and not sys.stdin.isatty():
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if len(data) > MAX_INPUT_BYTES:
            raise SystemExit(
                _print_error(f"{program}: the input is larger than {MAX_INPUT_BYTES:,} bytes")
            )
        try:
            arguments[by_stdin] = data.decode()
        except UnicodeDecodeError:
            raise SystemExit(_print_error(f"{program}: the input is not UTF-8 text")) from None
    return arguments


def parser_of(program: str, tool: Tool) -> argparse.ArgumentParser:
    """The command line options of a tool."""
    parser = argparse.ArgumentParser(
        prog=program, description=tool.description, allow_abbrev=False, argument_default=None
    )
    properties: dict[str, dict[str, JSON]] = tool.parameters["properties"]
    by_stdin = stdin_parameter(tool)
    for name, schema in properties.items():
        text = str(schema.get("description", ""))
        text += " Standard input if not given." if name == by_stdin else ""
        about = text.replace("%", "%%")
        if schema.get("type") == "boolean":
            parser.add_argument(
                f"--{name}", dest=name, action=argparse.BooleanOptionalAction, help=about
            )
        else:
            convert = _ArgumentConverter(schema)
            options = (f"--{name}", "-c") if name == "command" else (f"--{name}",)
            parser.add_argument(*options, dest=name, type=convert, metavar="…", help=about)
    if by_stdin is not None:
        parser.add_argument(_WORD, nargs="?", metavar=by_stdin, help=f"The same as --{by_stdin}.")
    return parser


class _ArgumentConverter:
    """Converts a word of the command line to the type that the schema of a parameter names."""

    def __init__(self, schema: dict[str, JSON]) -> None:
        self._kinds = _kinds(schema)

    def __call__(self, word: str) -> JSON:
        if "string" in self._kinds or not self._kinds:
            return word
        try:
            return msgspec.json.decode(word)
        except msgspec.DecodeError:
            raise argparse.ArgumentTypeError(
                f"expected {' or '.join(sorted(self._kinds))}, got {word[:80]!r}"
            ) from None


def _kinds(schema: JSON) -> set[str]:
    if not is_object(schema):
        return set()
    kind = schema.get("type", [])
    found = set[str]([kind] if isinstance(kind, str) else kind)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _kinds(option)
    return found - {"null"}
