"""Which model to offer to a user who has none, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from evoclaw.providers.models.catalogue import ModelEntry, catalogue
from evoclaw.providers.models.local import install_command, needs_of_entry
from evoclaw.providers.models.memory import MachineMemory, format_bytes, machine_memory
from evoclaw.providers.models.store import ModelStore, models_folder

PROMPT_TOKENS, REPLY_TOKENS = 1_500, 80
"""Of a usual first turn: instructions, tools and a question; one call."""
OPERATIONS_PER_CORE_S = 40e9
READ_BYTES_S = 8e9
"""How fast a core computes and how fast memory is read: rough, for an ordinary machine."""
MAX_TURN_S = 120.0
"""A model whose first turn takes longer is not offered."""


class ModelOffer(Struct, frozen=True):
    """A model of the catalogue that fits this machine, and what it costs."""

    entry: ModelEntry
    disk_bytes: int
    memory_bytes: int
    first_turn_s: float

    @property
    def name(self) -> str:
        """The name for `--model`."""
        return f"embedded/{self.entry.name}"

    @property
    def command(self) -> str:
        """The command that installs it."""
        return install_command(self.entry)

    @property
    def costs(self) -> str:
        """Disk, memory and time, for people."""
        seconds = max(1, round(self.first_turn_s))
        return (
            f"{format_bytes(self.disk_bytes)} to download, {format_bytes(self.memory_bytes)} of "
            f"memory, roughly {seconds} s for a first answer"
        )


def best_offer(
    env: Mapping[str, str], memory: MachineMemory | None = None, cores: int | None = None
) -> ModelOffer | None:
    """The best tested model that fits, can be downloaded and is not installed; None if none does.

    Args:
        env: For the data folder.
        memory: Of this machine, unless it is given.
        cores: Of this machine, unless they are given.
    """
    memory = memory or machine_memory()
    cores = cores or os.cpu_count() or 1
    installed = {model.sha256 for model in ModelStore(models_folder(env)).installed()}
    for entry in catalogue():
        if not entry.is_tested or not entry.hub or entry.sha256 in installed:
            continue
        seconds = first_turn_seconds(entry, cores)
        needs = needs_of_entry(entry)
        if seconds <= MAX_TURN_S and not needs.problem(memory):
            context = needs.context_tokens(memory.free_bytes)
            return ModelOffer(entry, entry.size_bytes, needs.memory_bytes(context), seconds)
    return None


def first_turn_seconds(entry: ModelEntry, cores: int) -> float:
    """How long a first turn takes, roughly: the prompt is computed, the reply reads the weights."""
    prompt = PROMPT_TOKENS * 2 * entry.parameters / (OPERATIONS_PER_CORE_S * max(1, cores))
    return prompt + REPLY_TOKENS * entry.size_bytes / READ_BYTES_S
