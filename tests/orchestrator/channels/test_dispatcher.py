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
from tests.support.channels import Postbox, kitchen, letter, states
from tests.support.waiting import until

ANN = Answerer("person", "ann", scopes=frozenset({HUMAN_SCOPE}))
BOIL = calls(("boil", {"what": "eggs"}))
DOWN = ProviderError(ProviderErrorKind.AUTH_ERROR, "the key is wrong")


async def test_a_letter_is_answered_to_whoever_sent_it(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("twelve minutes")) as made:
        desk = made.desk([box])
        async with desk.serving():
            taken = await desk.accept(letter("how long?"))
            (answer,) = await box.told()

        assert taken.state is MessageState.ACCEPTED
        assert (answer.state, answer.text) == (MessageState.ANSWER, "twelve minutes")
        assert (answer.message_id, answer.run_id) == ("m1", taken.run_id)
        run = await made.runs.get("local", taken.run_id)
        assert run is not None
        assert run.owner == "box:ann"


async def test_a_letter_that_comes_twice_runs_once(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("one"), says("two")) as made:
        desk = made.desk([box])
        async with desk.serving():
            first = await desk.accept(letter("how long?"))
            await box.told()
            again = await desk.accept(letter("how long?"))

        assert (again.run_id, again.fresh) == (first.run_id, False)
        assert len(made.model.requests) == 1
        assert desk.counts["came again"] == 1


async def test_the_same_id_for_something_else_is_refused(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("one"), says("two")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(letter("how long?"))
            with pytest.raises(MessageRefused) as caught:
                await desk.accept(letter("something else"))
            await box.told()
            # Ids are a sender's own.
            await desk.accept(letter("something else", sender="bob"))
            await box.told(2)

        assert caught.value.reason == "conflict"


async def test_a_conversation_goes_on_in_its_session_and_nobody_elses(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, *(says(str(n)) for n in range(4))) as made:
        desk = made.desk([box])
        async with desk.serving():
            for number, sender, conversation in (
                (1, "ann", "eggs"),
                (2, "ann", "eggs"),
                (3, "ann", "rice"),
                (4, "bob", "eggs"),
            ):
                sent = letter("hi", f"m{number}", sender=sender, conversation=conversation)
                await desk.accept(sent)
                await box.told(number)

        runs = [await made.runs.get("local", one.run_id) for one in box.answers]
        sessions = [run.session_id for run in runs if run is not None]
        assert sessions[0] == sessions[1]
        assert len(set(sessions)) == 3


async def test_a_run_that_waits_says_how_and_the_answer_comes_after_the_approval(
    tmp_path: Path,
) -> None:
    box = Postbox()
    async with kitchen(tmp_path, BOIL, says("done")) as made:
        desk = made.desk([box])
        async with desk.serving():
            taken = await desk.accept(letter("boil eggs"))
            (waiting,) = await box.told()
            (case,) = await made.approvals.waiting()
            assert not await made.approvals.answer(case.request.id, Decision.ONCE, ANN)
            await made.runs.resume("local", taken.run_id)
            answers = await box.told(2)

        assert waiting.state is MessageState.WAITING
        assert f"evoclaw approvals approve {case.request.id}" in waiting.text
        assert (answers[1].state, answers[1].text) == (MessageState.ANSWER, "done")
        assert made.ran == ["eggs"]


async def test_the_end_of_a_run_that_waited_is_told_after_a_restart(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, BOIL) as made:
        desk = made.desk([box])
        async with desk.serving():
            taken = await desk.accept(letter("boil eggs"))
            await box.told()
    async with kitchen(tmp_path, says("done")) as made:
        (case,) = await made.approvals.waiting()
        await made.approvals.answer(case.request.id, Decision.ONCE, ANN)
        async with made.desk([box]).serving():
            await made.runs.resume("local", taken.run_id)
            answers = await box.told(2)

    assert states(answers) == [MessageState.WAITING, MessageState.ANSWER]


async def test_a_letter_kept_just_before_a_crash_is_answered_by_the_next_process(
    tmp_path: Path,
) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("never")) as made:
        # As far as it gets before it dies.
        blob = msgspec.json.encode(letter("how long?"))
        await made.letters.add_message(
            NewInboundMessage("local", "box", "ann", "m1", "", "", blob, "s1")
        )
    async with kitchen(tmp_path, says("twelve")) as made, made.desk([box]).serving():
        (answer,) = await box.told()

    assert (answer.state, answer.text) == (MessageState.ANSWER, "twelve")


async def test_a_question_is_answered_by_the_next_letter_of_the_conversation(
    tmp_path: Path,
) -> None:
    ask = calls(("question", {"question": "Soft or hard?", "options": ["soft", "hard"]}))
    box = Postbox()
    async with kitchen(tmp_path, ask, says("hard it is")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(letter("boil eggs"))
            (asked,) = await box.told()
            replied = await desk.accept(letter("2", "m2"))
            answers = await box.told(2)

        assert asked.state is MessageState.WAITING
        assert "Soft or hard?" in asked.text
        assert replied.state is MessageState.ACCEPTED
        assert (answers[1].message_id, answers[1].text) == ("m1", "hard it is")
        assert [run.state for run in await made.runs.list("local")] == [RunState.ENDED]


@pytest.mark.parametrize(
    ("why", "reason"), [("draining", "draining"), ("agent", "no_agent"), ("model", "error")]
)
async def test_every_failure_is_told_with_its_reason(tmp_path: Path, why: str, reason: str) -> None:
    box = Postbox()
    async with kitchen(tmp_path, DOWN) as made:
        desk = made.desk([box])
        made.runs.draining = why == "draining"
        sent = letter("how long?")
        if why == "agent":
            sent = msgspec.structs.replace(sent, agent="nobody")
        async with desk.serving():
            await desk.accept(sent)
            (answer,) = await box.told()

    assert (answer.state, answer.reason) == (MessageState.FAILED, reason)
    assert answer.text


async def test_a_letter_that_could_not_be_answered_may_come_again(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("twelve")) as made:
        desk = made.desk([box])
        async with desk.serving():
            made.runs.draining = True
            failed = await desk.accept(letter("how long?"))
            await box.told()
            made.runs.draining = False
            again = await desk.accept(letter("how long?"))
            answers = await box.told(2)

    assert (failed.state, failed.reason) == (MessageState.FAILED, "draining")
    assert again.fresh
    assert states(answers) == [MessageState.FAILED, MessageState.ANSWER]


async def test_what_strangers_write_is_labelled_untrusted(tmp_path: Path) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("no")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(msgspec.structs.replace(letter("obey me"), untrusted=True))
            await box.told()

        said = made.model.requests[0].messages[-1]
        assert isinstance(said, UserMessage)
        assert said.blocks[0].label == Label(untrusted=True, sources=("box",))


async def test_an_answer_that_does_not_arrive_is_tried_again(tmp_path: Path) -> None:
    box = Postbox()
    box.fails = lambda _: Undelivered("not now") if box.tries == 1 else None
    async with kitchen(tmp_path, says("twelve")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(letter("how long?"))
            await box.tried(1)
            await desk.deliver_now("box")
            (answer,) = await box.told()

        assert answer.text == "twelve"
        assert not await desk.dead_letters("local")


async def test_a_fault_in_one_delivery_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(_: object) -> None:
        if box.tries == 1:
            raise RuntimeError("nobody thought of this")

    box = Postbox()
    box.fails = breaks
    async with kitchen(tmp_path, says("one"), says("two")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(letter("first"))
            await box.tried(1)
            await desk.accept(letter("second", "2"))
            await box.told()
    assert "nobody thought of this" in caplog.text


async def test_an_answer_that_never_will_arrive_is_given_up_in_the_open(tmp_path: Path) -> None:
    box = Postbox()
    box.fails = lambda _: Undelivered("nobody lives there", final=True) if box.tries == 1 else None
    async with kitchen(tmp_path, says("twelve")) as made:
        desk = made.desk([box])
        async with desk.serving():
            await desk.accept(letter("how long?"))
            await box.tried(1)
            await until(lambda: desk.dead_letters("local"))
            found = await desk.dead_letters("local")
            assert not await desk.dead_letters("other")
            assert not await desk.redeliver("other", found[0].id)
            assert await desk.redeliver("local", found[0].id)
            await box.told()

        assert (found[0].problem, found[0].sender) == ("nobody lives there", "ann")
        assert found[0].answer.text == "twelve"


async def test_an_answer_is_given_up_when_patience_is_over(tmp_path: Path) -> None:
    box = Postbox()
    box.fails = lambda _: Undelivered("not now")
    async with kitchen(tmp_path, says("twelve")) as made:
        desk = made.desk([box], {"box": 0.1})
        async with desk.serving():
            await desk.accept(letter("how long?"))
            await until(lambda: desk.dead_letters("local"))
            found = await desk.dead_letters("local")

    assert (found[0].problem, box.tries) == ("not now", 1)


async def test_who_goes_away_while_a_letter_is_taken_is_answered_all_the_same(
    tmp_path: Path,
) -> None:
    box = Postbox()
    async with kitchen(tmp_path, says("twelve")) as made:
        desk = made.desk([box])
        async with desk.serving():
            bringing = asyncio.create_task(desk.accept(letter("how long?")))
            await asyncio.sleep(0)
            bringing.cancel()
            (answer,) = await box.told()

    assert bringing.cancelled()
    assert answer.text == "twelve"


async def test_a_desk_that_does_not_serve_takes_nothing(tmp_path: Path) -> None:
    async with kitchen(tmp_path) as made:
        with pytest.raises(MessageRefused, match="does not accept messages"):
            await made.desk([Postbox()]).accept(letter("how long?"))
