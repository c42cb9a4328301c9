"""What a task waits for: questions and approvals, as messages of the agent, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct

from evoclaw.core.messages import JSON
from evoclaw.core.ports import Decision
from evoclaw.governance.approvals import Answerer
from evoclaw.orchestrator.a2a.errors import A2aError, A2aErrorKind, invalid_params
from evoclaw.orchestrator.a2a.message_parts import first_data, read_parts
from evoclaw.orchestrator.a2a.schemas import A2aMessage, A2aPart, data_part, text_part
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.runs.requests import RunView
from evoclaw.store.databases.notices import run_id_of
from evoclaw.tools.question import Question, UserAnswer, parse_answer

T = TypeVar("T", bound=Struct)
MAX_REASON_CHARS = 2_000
DECISIONS = {"approve": Decision.ONCE, "session": Decision.SESSION, "deny": Decision.DENY}
"""What answers an approval, as a text or as `decision` of a data part."""


class QuestionReply(Struct, frozen=True):
    """The answer to a question, as a data part."""

    question_id: str
    chosen: tuple[str, ...] = ()
    text: str = ""


class ApprovalReply(Struct, frozen=True):
    """The answer to an approval, as a data part."""

    approval_id: str
    decision: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InputRequests:
    """The questions and approvals that one run waits for."""

    questions: Questions
    approvals: CallApprovals | None
    tenant: str
    run: RunView

    async def parts(self) -> Sequence[A2aPart]:
        """What the agent asks: each as a text for people and as data for programs."""
        found: list[A2aPart] = []
        for question in await self._questions():
            options = "".join(f"\n- {option}" for option in question.options)
            data: dict[str, JSON] = {"question_id": question.id, "question": question.text}
            if question.options:
                data |= {
                    "options": list(question.options),
                    "multiple": question.multiple,
                    "own_words": question.own_words,
                }
            found += (text_part(question.text + options), data_part(data))
        for case in await self._approvals():
            asked = case.request
            text = (
                f"The agent wants to call {asked.scope.tool!r}: {asked.reason}. "
                f"Answer {', '.join(DECISIONS)}."
            )
            data = {
                "approval_id": asked.id,
                "tool": asked.scope.tool,
                "arguments": asked.arguments,
                "reason": asked.reason,
                "covers": asked.scope.description,
                "decisions": list(DECISIONS),
            }
            found += (text_part(text), data_part(data))
        return found

    async def answer(self, message: A2aMessage, by: Answerer) -> None:
        """Store the answer in a message; `A2aError` if it answers nothing, or cannot be used."""
        questions, approvals = await self._questions(), await self._approvals()
        data = first_data(message) or {}
        if "approval_id" in data:
            await self._decide(_converted(data, ApprovalReply), approvals, by)
        elif "question_id" in data:
            await self._reply(_converted(data, QuestionReply), questions)
        elif len(questions) + len(approvals) != 1:
            if not (questions or approvals):
                raise A2aError(
                    A2aErrorKind.UNSUPPORTED_OPERATION,
                    "The task waits for results of its caller's own tools, not for a message.",
                )
            raise invalid_params(
                "The task waits for several answers. Send each as a data part with its question_id "
                "or approval_id."
            )
        elif questions:
            answer = parse_answer(questions[0], read_parts(message).text)
            await self._store_answer(questions[0].id, answer)
        else:
            decision = read_parts(message).text.strip().rstrip(".!").casefold()
            await self._decide(ApprovalReply(approvals[0].request.id, decision), approvals, by)

    async def _reply(self, reply: QuestionReply, waiting: Sequence[Question]) -> None:
        if reply.question_id not in {question.id for question in waiting}:
            raise invalid_params("The task does not wait for an answer to this question_id.")
        await self._store_answer(reply.question_id, UserAnswer(reply.chosen, reply.text))

    async def _store_answer(self, question_id: str, answer: UserAnswer) -> None:
        if problem := await self.questions.answer(question_id, answer):
            raise invalid_params(f"The answer cannot be used: {problem}.")

    async def _decide(
        self, reply: ApprovalReply, waiting: Sequence[ApprovalCase], by: Answerer
    ) -> None:
        if reply.decision not in DECISIONS:
            raise invalid_params(
                f"The task waits for an approval. Answer with one of {', '.join(DECISIONS)}."
            )
        if self.approvals is None or reply.approval_id not in {c.request.id for c in waiting}:
            raise invalid_params("The task does not wait for this approval_id.")
        if problem := await self.approvals.answer(
            reply.approval_id,
            DECISIONS[reply.decision],
            by,
            reply.reason[:MAX_REASON_CHARS].replace("\x00", ""),
        ):
            raise invalid_params(f"The answer cannot be used: {problem}.")

    async def _questions(self) -> Sequence[Question]:
        waiting = await self.questions.waiting(self.run.session_id)
        return [question for _, question in waiting if run_id_of(question.id) == self.run.run_id]

    async def _approvals(self) -> Sequence[ApprovalCase]:
        if self.approvals is None:
            return ()
        waiting = await self.approvals.waiting(self.tenant)
        return [case for case in waiting if case.request.run_id == self.run.run_id]


def _converted(data: dict[str, JSON], kind: type[T]) -> T:
    try:
        return msgspec.convert(data, type=kind)
    except msgspec.ValidationError as problem:
        raise invalid_params(f"The data part does not answer the task: {problem}.") from None
