"""An agent's definition, and the numbers that bound its runs."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class LoopSettings(Struct, frozen=True):
    """The limits of one run. Recorded in full: a default that changes later changes no old run."""

    max_turns: int = 10
    """Replies with calls before a closing reply is asked for; 20 for the iterative API."""
    max_calls_per_turn: int = 5
    max_parallel: int = 5
    tool_error_limit: int = 3
    """Failed turns in a row."""
    repeat_limit: int = 3
    """The same set of calls in a row, or the same denied call in all."""
    max_seconds: float = 3600.0
    max_result_chars: int = 64_000
    """What the model sees of one result; head and tail beyond that."""
    temperature: float | None = None
    max_tokens: int | None = None
    confirm: bool = False
    """Answer the first text-only reply with the checklist of double confirmation."""
    confirm_limit: int = 2
    confirm_without_tools: bool = True
    """Confirm also when no tool was used."""
    output_fields: tuple[str, ...] = ()
    """Names of the output's fields; plain text goes under the first, or under `result`."""
    evidence: bool | UnsetType = UNSET
    """Send an answer back that does not cite the receipts of what was done. Not recorded where it
    was not said: older recordings stay the same to the byte."""


ITERATIVE = LoopSettings(max_turns=20, confirm=True)
"""The defaults of `invoke_iterative`."""


class Agent(Struct, frozen=True, omit_defaults=True):
    """Who answers: a name, a model, a prompt, and what it may do."""

    name: str
    model: str
    prompt: str = ""
    capabilities: frozenset[str] = frozenset()
    """Permissions it holds; none means no tools, `"*"` all."""
    settings: LoopSettings = LoopSettings()
