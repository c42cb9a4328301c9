"""One chat channel over real runs and a real store, served until the block ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.providers.scripted import ScriptStep, calls
from tests.support.channels import ChannelHarness, open_channel_harness

BOIL = calls(("boil", {"what": "eggs"}))
"""A call that needs an approval."""


@asynccontextmanager
async def chat_kitchen(
    folder: Path,
    settings: ChannelSettings,
    secrets: Mapping[str, str],
    *steps: ScriptStep,
    clock: Callable[[], float] | None = None,
) -> AsyncGenerator[tuple[ChannelHarness, ChatChannel]]:
    """The cook answers with these steps."""
    async with open_channel_harness(folder, *steps, clock=clock) as made:
        channel = made.chat(settings, secrets)
        async with made.dispatcher([channel]).serving():
            yield made, channel
