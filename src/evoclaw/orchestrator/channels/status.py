"""The state of a channel, as the operator sees it: its connection, its traffic, and what to fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.orchestrator.channels.chat.pairing import ChannelPairing
from evoclaw.orchestrator.channels.chat.settings import CHAT_KINDS
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.store.channel_traffic import read_traffic
from evoclaw.store.channels import ChannelStore

ConnectionState = Literal["connecting", "connected", "standby", "listening", "failed"]
_SECRETS = ("token", "app_token", "password", "secret")
"""What the settings of secrets are named after."""


class ChannelStatus(Struct, frozen=True):
    """The connection of a channel."""

    state: ConnectionState
    """A webhook is `listening`: the other side connects. In `standby`, another orchestrator
    receives the messages."""
    account: str = ""
    """The name of the bot or the address of the mailbox, once it is known."""
    problem: str = ""
    """Why the last attempt to connect failed; stays until the channel is connected."""
    changed_at: float = 0.0
    """Since when it has this state, in Unix seconds."""
    is_login: bool = False
    """Whether the service rejected the credentials of the channel."""
    last_problem: str = ""
    """The last problem; also after it is solved."""
    last_problem_at: float | None = None
    """When it happened, in Unix seconds."""

    def changed(
        self,
        state: ConnectionState,
        at: float,
        *,
        account: str = "",
        problem: str = "",
        is_login: bool = False,
    ) -> ChannelStatus:
        """The status after the connection changed, or could not be opened once more."""
        now = replace(
            self,
            state=state,
            account=account or self.account,
            problem=problem,
            changed_at=self.changed_at if state == self.state else at,
            is_login=is_login,
        )
        return now.noted(problem, at) if problem else now

    def noted(self, problem: str, at: float) -> ChannelStatus:
        """The status with another last problem."""
        return replace(self, last_problem=problem, last_problem_at=at)


@runtime_checkable
class ObservedChannel(Protocol):
    """A channel that reports its state; all configured ones do."""

    @property
    def settings(self) -> ChannelSettings:
        """Its settings."""
        ...

    @property
    def status(self) -> ChannelStatus:
        """Its connection."""
        ...

    @property
    def counts(self) -> Counter[str]:
        """Messages that were refused, and failures, by reason."""
        ...


class ChannelView(Struct, frozen=True):
    """A channel: who may use it, whether it is connected, and its last messages."""

    name: str
    """The name of the channel."""
    kind: str
    """The kind: `telegram`, `slack`, `discord`, `matrix`, `email`, `webhook` or `mqtt`."""
    agent: str
    """The agent that answers; empty: the default agent, or the one that the sender names."""
    state: str
    """`connecting`, `connected`, `standby`, `listening` or `failed`. In standby, another
    orchestrator receives the messages; a channel that failed is retried."""
    changed_at: float
    """Since when it has this state, in Unix seconds."""
    account: str
    """The name of the bot or the address of the mailbox, once it is known."""
    problem: str
    """Why it is not connected; empty if it is."""
    fix: str
    """What to do next; empty if nothing is wrong."""
    senders: tuple[str, ...]
    """The senders that the settings name; `*` is everyone."""
    paired: dict[str, str]
    """The senders that were added with a code, and their users."""
    sends_answers: bool
    """False for a webhook without a `callback_url`: its answers are read from their runs."""
    last_received_at: float | None
    """When the last message was accepted, in Unix seconds."""
    last_sent_at: float | None
    """When the last answer was delivered, in Unix seconds."""
    refused: int
    """Messages that this process refused since it started."""
    retrying: int
    """Answers that could not be delivered yet."""
    given_up: int
    """Answers that could not be delivered, and are not retried."""
    last_problem: str
    """The last problem of the connection or of a delivery; also after it is solved."""
    last_problem_at: float | None
    """When it happened, in Unix seconds."""


async def channel_view(channel: ObservedChannel, store: ChannelStore) -> ChannelView:
    """The state of a channel, with the traffic of all processes that share the store."""
    settings, status = channel.settings, channel.status
    traffic = await read_traffic(store.database, settings.name)
    paired = await ChannelPairing(settings.name, store).senders()
    sends_answers = settings.kind != "webhook" or bool(settings.webhook.callback_url)
    if not sends_answers:
        traffic = replace(traffic, retrying=0, given_up=0, problem="", problem_at=None)
    last = (status.last_problem, status.last_problem_at)
    if (traffic.problem_at or 0.0) > (status.last_problem_at or 0.0):
        last = (traffic.problem, traffic.problem_at)
    return ChannelView(
        settings.name,
        settings.kind,
        settings.agent,
        status.state,
        status.changed_at,
        status.account,
        status.problem,
        _how_to_fix(settings, status, paired, traffic.given_up),
        tuple(settings.senders),
        paired,
        sends_answers,
        traffic.last_received_at,
        traffic.last_sent_at,
        sum(number for why, number in channel.counts.items() if why.startswith("refused: ")),
        traffic.retrying,
        traffic.given_up,
        *last,
    )


def _how_to_fix(
    settings: ChannelSettings, status: ChannelStatus, paired: Mapping[str, str], given_up: int
) -> str:
    name = settings.name
    if status.state == "failed":
        return _connection_fix(settings, status)
    if not settings.senders and not paired:
        return f"No sender may use this channel yet. Run `evoclaw channels pair {name}`."
    if given_up:
        return "Fix the cause, then retry the answers that could not be delivered."
    return ""


def _connection_fix(settings: ChannelSettings, status: ChannelStatus) -> str:
    if settings.kind not in CHAT_KINDS:
        return "The channel reconnects by itself. Run `evoclaw doctor` to check the broker."
    test = f"`evoclaw channels test {settings.name}`"
    if status.is_login:
        return f"Correct {_secret_sources(settings)}, check with {test}, then restart the service."
    return f"The channel reconnects by itself. Check the network and the settings with {test}."


def _secret_sources(settings: ChannelSettings) -> str:
    """Where the secrets of a channel come from, in words."""
    table = getattr(settings, settings.kind)
    found: list[str] = []
    for name in _SECRETS:
        if path := getattr(table, f"{name}_file", None):
            found.append(f"the file {path}")
        elif variable := getattr(table, f"{name}_env", ""):
            found.append(f"the environment variable {variable}")
    return " and ".join(found)
