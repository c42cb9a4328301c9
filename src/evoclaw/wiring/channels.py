"""Builds the channels of the service: what messages arrive on, and what answers them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.orchestrator.channels.dispatcher import Channel, ChannelDispatcher
    from evoclaw.orchestrator.channels.settings import ChannelSettings
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.wiring.store import Stores

CHECK_TIMEOUT_S = 15.0
"""For the login of one channel."""


async def open_channels(
    settings: EvoClawConfig,
    stores: Stores,
    runs: Runs,
    conversations: Conversations,
    approvals: CallApprovals,
    image_problem: Callable[[str], str],
    env: Mapping[str, str],
) -> tuple[ChannelDispatcher, Sequence[Channel]]:
    """Build the channels, and what dispatches their messages."""
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.channels.chat.approvals import ChatApprovals
    from evoclaw.orchestrator.channels.chat.commands import ConversationCommands
    from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
    from evoclaw.orchestrator.channels.factory import build_channels
    from evoclaw.orchestrator.notifications.answer_tokens import KEY_BYTES, AnswerTokens
    from evoclaw.store.channels import ChannelStore
    from evoclaw.store.notifications import NotificationStore
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.wiring.fleet import find_broker

    def link() -> MqttLink:
        broker = settings.broker
        address = find_broker(settings.data, env)
        return MqttLink(address, keep_alive=broker.keep_alive_s, qos=broker.qos)

    store, key = ChannelStore(stores.database), secrets.token_bytes(KEY_BYTES)
    if settings.channels:
        # Shared by all orchestrators of the store: any of them may get the answer.
        key = await NotificationStore(stores.database).key(
            "answers", lambda: secrets.token_bytes(KEY_BYTES)
        )
    asking = ChatApprovals(AnswerTokens(key), approvals, runs, Redactor(secrets_in(env)), time.time)
    # A SQLite file belongs to this process alone.
    lease_s = None if stores.database.dialect == "sqlite" else settings.runs.lease_s
    channels = build_channels(settings.channels, env, link, store, asking, lease_s)
    dispatcher = ChannelDispatcher(
        store,
        runs,
        conversations,
        channels,
        delivery_timeouts_s={channel.name: channel.patience_s for channel in settings.channels},
        commands=ConversationCommands(store, runs, asking),
        image_problem=image_problem,
    )
    return dispatcher, channels


async def check_channels(env: Mapping[str, str], name: str = "") -> Mapping[str, tuple[bool, str]]:
    """Log in at the service of each chat channel; whether that works, and the account or the cause.

    Args:
        env: The environment variables, which may hold secrets.
        name: Only this channel. Raises `ConfigError` if there is none of this name, or if it is not
            a chat channel.
    """
    from evoclaw.core.errors import ConfigError
    from evoclaw.orchestrator.channels.chat.settings import CHAT_KINDS
    from evoclaw.wiring.settings import orchestrator_settings

    channels = orchestrator_settings(env).channels
    chats = [channel for channel in channels if channel.kind in CHAT_KINDS]
    if name:
        chats = [channel for channel in chats if channel.name == name]
    if name and not chats:
        known = ", ".join(channel.name for channel in channels if channel.kind in CHAT_KINDS)
        raise ConfigError(
            f"there is no chat channel {name!r}; configured: {known or 'none'}. See [[channels]] "
            "in evoclaw.toml"
        )

    async def check(channel: ChannelSettings) -> tuple[bool, str]:
        from evoclaw.core.errors import EvoClawError
        from evoclaw.orchestrator.channels.factory import build_service

        try:
            service = build_service(channel, env)
        except ConfigError as problem:
            return False, str(problem)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return True, await service.check()
        except TimeoutError:
            return False, f"no answer within {CHECK_TIMEOUT_S:g} s"
        except EvoClawError as problem:
            return False, str(problem)
        finally:
            await service.aclose()

    found = await asyncio.gather(*(check(channel) for channel in chats))
    return {channel.name: result for channel, result in zip(chats, found, strict=True)}
