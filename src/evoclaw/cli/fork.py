"""`evoclaw fork`: a recorded run again from one of its turns, with another model or other words."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from evoclaw.cli.client import open_client
from evoclaw.cli.needs import Wiring
from evoclaw.cli.render import tell
from evoclaw.cli.run import run
from evoclaw.cli.watching import records_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record
from evoclaw.core.forking import before_turn, with_message, with_prompt
from evoclaw.core.messages import Message, Reply, ToolResult
from evoclaw.core.state import new_run
from evoclaw.store.recordings import read_recording


def fork(options: Namespace, wiring: Wiring) -> int:
    """Begin a new run where the old one stood before a turn; it is recorded by itself."""
    records = _records(options)
    messages = before_turn(records, options.at)
    if options.prompt is not None:
        messages = with_prompt(messages, _text(Path(options.prompt)))
    if options.message is not None:
        if _unanswered(messages):
            raise ConfigError("calls of the last turn have no answer yet; fork at that turn")
        messages = with_message(messages, options.message)
    elif _ended(messages):
        raise ConfigError(f"the run had ended by turn {options.at}; say something with --message")
    tell(f"forked from run {records[0].run_id[:8]} at turn {options.at}")
    return run(options, wiring, new_run(messages))


def _records(options: Namespace) -> Sequence[Record]:
    if (options.recording is None) == (options.run is None):
        raise ConfigError("say what to fork: a recording, or --run ID for a run of the service")
    if options.recording is not None:
        return read_recording(Path(options.recording))
    return asyncio.run(_records_there(options.run))


async def _records_there(run_id: str) -> list[Record]:
    async with open_client(os.environ) as client:
        return await records_of(client, run_id)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def _ended(messages: Sequence[Message]) -> bool:
    """Whether nothing is left to do: the last word is a reply without calls."""
    return bool(messages) and isinstance(last := messages[-1], Reply) and not last.calls


def _unanswered(messages: Sequence[Message]) -> bool:
    answered = {m.call_id for m in messages if isinstance(m, ToolResult)}
    replies = (m for m in messages if isinstance(m, Reply))
    return any(call.id not in answered for reply in replies for call in reply.calls)
