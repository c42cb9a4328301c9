"""The channel dispatcher answers each message once, and reports every failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.labels import Label
from evoclaw.core.messages import UserMessage
from evoclaw.core.ports import Decision
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer
from evoclaw.orchestrator.channels.inbound import MessageRefused, MessageState, Undelivered
from evoclaw.orchestrator.runs.runs import RunStatus as RunState
from evoclaw.providers.scripted import calls, says
from evoclaw.store.channels import NewInboundMessage
from tests.support.channels import MemoryChannel, inbound_message, open_channel_harness, states
from tests.support.waiting import until

ANN = Answerer("person", "ann", scopes=frozenset({HUMAN_SCOPE}))
BOIL = calls(("boil", {"what": "eggs"}))
DOWN = ProviderError(ProviderErrorKind.AUTH_ERROR, "the key is wrong")


async def test_a_message_is_answered_to_its_sender(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("twelve minutes")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            taken = await desk.accept(inbound_message("how long?"))
            (answer,) = await box.wait_for_answers()

        assert taken.state is MessageState.ACCEPTED
        assert (answer.state, answer.text) == (MessageState.ANSWER, "twelve minutes")
        assert (answer.message_id, answer.run_id) == ("m1", taken.run_id)
        run = await made.runs.get("local", taken.run_id)
        assert run is not None
        assert run.owner == "box:ann"


async def test_a_message_posted_twice_starts_one_run(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("one"), says("two")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            first = await desk.accept(inbound_message("how long?"))
            await box.wait_for_answers()
            again = await desk.accept(inbound_message("how long?"))

        assert (again.run_id, again.fresh) == (first.run_id, False)
        assert len(made.model.requests) == 1
        assert desk.counts["came again"] == 1


async def test_a_message_id_reused_for_other_text_is_refused(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("one"), says("two")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(inbound_message("how long?"))
            with pytest.raises(MessageRefused) as caught:
                await desk.accept(inbound_message("something else"))
            await box.wait_for_answers()
            # Ids are a sender's own.
            await desk.accept(inbound_message("something else", sender="bob"))
            await box.wait_for_answers(2)

        assert caught.value.reason == "conflict"


async def test_a_conversation_continues_in_its_own_session(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, *(says(str(n)) for n in range(4))) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            for number, sender, conversation in (
                (1, "ann", "eggs"),
                (2, "ann", "eggs"),
                (3, "ann", "rice"),
                (4, "bob", "eggs"),
            ):
                sent = inbound_message("hi", f"m{number}", sender=sender, conversation=conversation)
                await desk.accept(sent)
                await box.wait_for_answers(number)

        runs = [await made.runs.get("local", one.run_id) for one in box.answers]
        sessions = [run.session_id for run in runs if run is not None]
        assert sessions[0] == sessions[1]
        assert len(set(sessions)) == 3


async def test_a_waiting_run_reports_the_approve_command_and_answers_once_approved(
    tmp_path: Path,
) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, BOIL, says("done")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            taken = await desk.accept(inbound_message("boil eggs"))
            (waiting,) = await box.wait_for_answers()
            (case,) = await made.approvals.waiting()
            assert not await made.approvals.answer(case.request.id, Decision.ONCE, ANN)
            await made.runs.resume("local", taken.run_id)
            answers = await box.wait_for_answers(2)

        assert waiting.state is MessageState.WAITING
        assert f"evoclaw approvals approve {case.request.id}" in waiting.text
        assert (answers[1].state, answers[1].text) == (MessageState.ANSWER, "done")
        assert made.ran == ["eggs"]


async def test_a_run_that_waited_is_answered_after_a_restart(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, BOIL) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            taken = await desk.accept(inbound_message("boil eggs"))
            await box.wait_for_answers()
    async with open_channel_harness(tmp_path, says("done")) as made:
        (case,) = await made.approvals.waiting()
        await made.approvals.answer(case.request.id, Decision.ONCE, ANN)
        async with made.dispatcher([box]).serving():
            await made.runs.resume("local", taken.run_id)
            answers = await box.wait_for_answers(2)

    assert states(answers) == [MessageState.WAITING, MessageState.ANSWER]


async def test_a_message_stored_before_a_crash_is_answered_by_the_next_process(
    tmp_path: Path,
) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("never")) as made:
        # As far as it gets before it dies.
        blob = msgspec.json.encode(inbound_message("how long?"))
        await made.letters.add_message(
            NewInboundMessage("local", "box", "ann", "m1", "", "", blob, "s1")
        )
    async with (
        open_channel_harness(tmp_path, says("twelve")) as made,
        made.dispatcher([box]).serving(),
    ):
        (answer,) = await box.wait_for_answers()

    assert (answer.state, answer.text) == (MessageState.ANSWER, "twelve")


async def test_the_next_message_of_a_conversation_answers_its_question(
    tmp_path: Path,
) -> None:
    ask = calls(("question", {"question": "Soft or hard?", "options": ["soft", "hard"]}))
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, ask, says("hard it is")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(inbound_message("boil eggs"))
            (asked,) = await box.wait_for_answers()
            replied = await desk.accept(inbound_message("2", "m2"))
            answers = await box.wait_for_answers(2)

        assert asked.state is MessageState.WAITING
        assert "Soft or hard?" in asked.text
        assert replied.state is MessageState.ACCEPTED
        assert (answers[1].message_id, answers[1].text) == ("m1", "hard it is")
        assert [run.state for run in await made.runs.list("local")] == [RunState.ENDED]


@pytest.mark.parametrize(
    ("why", "reason"), [("draining", "draining"), ("agent", "no_agent"), ("model", "error")]
)
async def test_a_failed_run_is_reported_to_the_sender_with_its_reason(
    tmp_path: Path, why: str, reason: str
) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, DOWN) as made:
        desk = made.dispatcher([box])
        made.runs.draining = why == "draining"
        sent = inbound_message("how long?")
        if why == "agent":
            sent = msgspec.structs.replace(sent, agent="nobody")
        async with desk.serving():
            await desk.accept(sent)
            (answer,) = await box.wait_for_answers()

    assert (answer.state, answer.reason) == (MessageState.FAILED, reason)
    assert answer.text


async def test_a_message_that_failed_can_be_posted_again(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("twelve")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            made.runs.draining = True
            failed = await desk.accept(inbound_message("how long?"))
            await box.wait_for_answers()
            made.runs.draining = False
            again = await desk.accept(inbound_message("how long?"))
            answers = await box.wait_for_answers(2)

    assert (failed.state, failed.reason) == (MessageState.FAILED, "draining")
    assert again.fresh
    assert states(answers) == [MessageState.FAILED, MessageState.ANSWER]


async def test_messages_of_untrusted_senders_are_labelled_untrusted(tmp_path: Path) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("no")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(msgspec.structs.replace(inbound_message("obey me"), untrusted=True))
            await box.wait_for_answers()

        said = made.model.requests[0].messages[-1]
        assert isinstance(said, UserMessage)
        assert said.blocks[0].label == Label(untrusted=True, sources=("box",))


async def test_a_failed_answer_delivery_is_retried(tmp_path: Path) -> None:
    box = MemoryChannel()
    box.fails = lambda _: Undelivered("not now") if box.tries == 1 else None
    async with open_channel_harness(tmp_path, says("twelve")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(inbound_message("how long?"))
            await box.wait_for_attempts(1)
            await desk.deliver_now("box")
            (answer,) = await box.wait_for_answers()

        assert answer.text == "twelve"
        assert not await desk.dead_letters("local")


async def test_an_exception_in_one_delivery_does_not_delay_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(_: object) -> None:
        if box.tries == 1:
            raise RuntimeError("nobody thought of this")

    box = MemoryChannel()
    box.fails = breaks
    async with open_channel_harness(tmp_path, says("one"), says("two")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(inbound_message("first"))
            await box.wait_for_attempts(1)
            await desk.accept(inbound_message("second", "2"))
            await box.wait_for_answers()
    assert "nobody thought of this" in caplog.text


async def test_an_undeliverable_answer_is_listed_and_can_be_retried(tmp_path: Path) -> None:
    box = MemoryChannel()
    box.fails = lambda _: Undelivered("nobody lives there", final=True) if box.tries == 1 else None
    async with open_channel_harness(tmp_path, says("twelve")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            await desk.accept(inbound_message("how long?"))
            await box.wait_for_attempts(1)
            await until(lambda: desk.dead_letters("local"))
            found = await desk.dead_letters("local")
            assert not await desk.dead_letters("other")
            assert not await desk.redeliver("other", found[0].id)
            assert await desk.redeliver("local", found[0].id)
            await box.wait_for_answers()

        assert (found[0].problem, found[0].sender) == ("nobody lives there", "ann")
        assert found[0].answer.text == "twelve"


async def test_answer_delivery_is_given_up_after_the_channels_timeout(tmp_path: Path) -> None:
    box = MemoryChannel()
    box.fails = lambda _: Undelivered("not now")
    async with open_channel_harness(tmp_path, says("twelve")) as made:
        desk = made.dispatcher([box], {"box": 0.1})
        async with desk.serving():
            await desk.accept(inbound_message("how long?"))
            await until(lambda: desk.dead_letters("local"))
            found = await desk.dead_letters("local")

    assert (found[0].problem, box.tries) == ("not now", 1)


async def test_a_message_whose_sender_disconnects_during_acceptance_is_answered(
    tmp_path: Path,
) -> None:
    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("twelve")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            bringing = asyncio.create_task(desk.accept(inbound_message("how long?")))
            await asyncio.sleep(0)
            bringing.cancel()
            (answer,) = await box.wait_for_answers()

    assert bringing.cancelled()
    assert answer.text == "twelve"


async def test_a_dispatcher_that_is_not_serving_refuses_messages(tmp_path: Path) -> None:
    async with open_channel_harness(tmp_path) as made:
        with pytest.raises(MessageRefused, match="does not accept messages"):
            await made.dispatcher([MemoryChannel()]).accept(inbound_message("how long?"))
