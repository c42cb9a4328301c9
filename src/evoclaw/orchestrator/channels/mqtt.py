"""The channel over MQTT: people have an inbox and an outbox at each agent, on the broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from secrets import token_hex

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.letters import Answer, Front, Letter, Refused, State, Undelivered
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.transport.link import Incoming, Link, LinkDown, TooLarge, Will
from evoclaw.transport.mailboxes import InboxMessage, encode_outbox, read_inbox
from evoclaw.transport.topics import Mailbox, box_topic, every_box, read_box_topic
from evoclaw.transport.wire import WireError

AT_ONCE = 200
"""Messages being taken; what comes beyond is dropped, and not being accepted it is said again."""
SAME, MOST_TEXTS = 5.0, 1_000
"""Seconds in which the same text without an id is taken for one that came twice; and how many such
texts are remembered."""
CUT = "\n[This was cut: it was too long for the broker.]"


class MqttChannel:
    """The orchestrator's end of everybody's boxes: a channel, and a party on a link of its own."""

    def __init__(
        self, settings: ChannelSettings, link: Link, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Choose the parts.

        Args:
            settings: Who may use it.
            link: To the broker, for this alone: people cannot hold up what edges say.
            clock: Unix seconds.
        """
        self.name, self.repeats = settings.name, False
        self._settings, self._link, self._clock = settings, link, clock
        self._client_id = f"orchestrator-inbox-{token_hex(8)}"
        self._front: Front | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._texts: dict[str, tuple[float, str]] = {}
        self.counts: Counter[str] = Counter()
        """What was dropped or refused, by reason."""

    async def serve(self, front: Front) -> None:
        """Bring what comes in the inboxes until cancelled."""
        self._front = front
        try:
            await self._link.run(self)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def send(self, letter: Letter, answer: Answer) -> None:
        """Put an answer into the sender's outbox; it is delivered when the broker has it."""
        try:
            await self._publish(letter.agent, letter.sender, answer)
        except LinkDown as problem:
            raise Undelivered(str(problem)) from None

    @property
    def client_id(self) -> str:
        """Another one each time: two orchestrators never end each other's connection."""
        return self._client_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """Every inbox."""
        return (every_box(Mailbox.INBOX),)

    def will(self) -> Will | None:
        """None: whoever is not told that something was accepted says it again."""
        return None

    async def connected(self) -> None:
        """Send what is owed."""
        self._spawn(self._hurry())

    async def _hurry(self) -> None:
        assert self._front is not None  # nobody is connected before `serve`
        try:
            await self._front.hurry(self.name)
        except EvoClawError:
            self.counts["the store failed"] += 1  # it is sent a little later

    def disconnected(self, reason: str) -> None:
        """Count it; the link tries again."""
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Read what came in an inbox, and have it answered."""
        found = read_box_topic(message.topic)
        if found is None or message.retained or not message.payload:
            # Nobody says something to an agent by leaving it with the broker.
            self.counts["no message" if found else "no inbox"] += 1
            return
        agent, _, user = found
        id_ = ""
        try:
            said = read_inbox(message.payload)
            id_ = said.message_id
            self._spawn(self._bring(self._letter(agent, user, said)))
        except WireError as problem:
            why = str(problem)
            self._spawn(self._refuse(agent, user, problem.request_id, str(problem.kind), why))
        except Refused as problem:
            self._spawn(self._refuse(agent, user, id_, problem.reason, str(problem)))

    def _letter(self, agent: str, user: str, said: InboxMessage) -> Letter:
        known = self._settings.user_of(user)
        if known is None:
            raise Refused("unknown_sender", "you may not use this channel; ask whoever runs it")
        if self._settings.agent not in ("", agent):
            raise Refused("no_agent", f"only the agent {self._settings.agent!r} is asked this way")
        return Letter(
            self.name,
            said.message_id or self._made_id(agent, user, said),
            user,
            said.message,
            self._settings.tenant,
            known,
            agent,
            said.session,
            self._settings.is_untrusted(user),
        )

    def _made_id(self, agent: str, user: str, said: InboxMessage) -> str:
        """An id for what has none: what the broker delivers twice, it delivers soon."""
        now = self._clock()
        self._texts = {key: one for key, one in self._texts.items() if now - one[0] < SAME}
        key = sha256(f"{agent}/{user}/{said.session}/{said.message}".encode()).hexdigest()
        if key not in self._texts and len(self._texts) < MOST_TEXTS:
            self._texts[key] = now, f"text-{token_hex(8)}"
        return self._texts[key][1] if key in self._texts else f"text-{token_hex(8)}"

    async def _bring(self, letter: Letter) -> None:
        assert self._front is not None  # nothing is received before `serve`
        agent, user = letter.agent, letter.sender
        try:
            taken = await self._front.take(letter)
            if not taken.fresh:
                # Who says it again has not heard the answer, or not that there will be one.
                await self._front.say_again(letter)
        except Refused as problem:
            await self._refuse(agent, user, letter.id, problem.reason, str(problem))
        except EvoClawError as problem:
            await self._refuse(agent, user, letter.id, "not_kept", str(problem))
        else:
            if taken.state is State.ACCEPTED:
                said = "This was taken and will be answered."
                answer = self._about(agent, letter.id, State.ACCEPTED, said)
                await self._say(
                    user, replace(answer, run_id=taken.run_id, session=letter.conversation)
                )

    async def _refuse(self, agent: str, user: str, id_: str, reason: str, why: str) -> None:
        self.counts[f"refused: {reason}"] += 1
        answer = self._about(agent, id_, State.REFUSED, f"This was not taken: {why}.")
        await self._say(user, replace(answer, reason=reason))

    def _about(self, agent: str, id_: str, state: State, text: str) -> Answer:
        return Answer(token_hex(8), agent, id_, state, text, timestamp=self._clock())

    async def _say(self, user: str, answer: Answer) -> None:
        """Tell what is not kept: whoever does not hear it says the same again."""
        try:
            await self._publish(answer.agent_id, user, answer)
        except (LinkDown, Undelivered):
            self.counts[f"unsaid: {answer.state}"] += 1

    async def _publish(self, agent: str, user: str, answer: Answer) -> None:
        topic = box_topic(agent, Mailbox.OUTBOX, user)
        text = answer.text
        while True:
            try:
                return await self._link.publish(topic, encode_outbox(answer))
            except TooLarge:
                # How long it is as JSON depends on what is in it.
                text = text[: len(text) // 2]
                if not text:
                    raise Undelivered(
                        "the broker takes no message of this size", final=True
                    ) from None
                answer = replace(answer, text=text + CUT)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if len(self._tasks) >= AT_ONCE:
            self.counts["too much at once"] += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
