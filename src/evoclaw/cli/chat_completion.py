"""Completes what the user of a chat types, when the Tab key is pressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    get_common_complete_suffix,
)
from prompt_toolkit.document import Document

Suggest: TypeAlias = Callable[[str], Iterable[tuple[str, int, str]]]
"""For the text before the cursor: what fits there, how many characters it replaces, and a note."""


class SuggestionCompleter(Completer):
    """Offers what a function suggests."""

    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Every suggestion for the text before the cursor."""
        for text, replaced, about in self._suggest(document.text_before_cursor):
            yield Completion(text, start_position=-replaced, display_meta=about)


def complete(buffer: Buffer, completer: Completer) -> None:
    """Insert what all completions have in common; if they have nothing, select the next."""
    if buffer.complete_state is not None and buffer.complete_state.complete_index is not None:
        buffer.complete_next()
        return
    event = CompleteEvent(text_inserted=True)
    offered = list(completer.get_completions(buffer.document, event))
    if len(offered) == 1:
        buffer.apply_completion(offered[0])
    elif common := get_common_complete_suffix(buffer.document, offered):
        buffer.insert_text(common)
        buffer.start_completion()
    elif buffer.complete_state is not None:
        buffer.complete_next()
    else:
        buffer.start_completion()
