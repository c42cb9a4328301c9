"""Questions to the user of a session: stored until answered, also after the run ended."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from evoclaw.core.ports import (
    ALLOW,
    Approval,
    Approver,
    Ask,
    Decision,
    Policy,
    Verdict,
)
from evoclaw.core.tools import Call
from evoclaw.store.sessions.questions import QuestionStore, StoredQuestion
from evoclaw.tools.question import (
    QUESTION_TOOL,
    Question,
    UserAnswer,
    UserPrompter,
    answer_problem,
    question_for_call,
    question_problem,
)

QUESTION_CODE = "question"
"""The code of the verdict that suspends a run until its question is answered."""


class Questions:
    """Asks the people of one tenant, at the terminal, the dashboard, the API or a channel."""

    def __init__(
        self,
        store: QuestionStore,
        *,
        local_person: UserPrompter | None = None,
        suspends_runs: bool = False,
    ) -> None:
        """Choose how people are asked.

        Args:
            store: Where questions and answers of a tenant are stored.
            local_person: Asks the person at the terminal, a user of this tenant.
            suspends_runs: Whether a run ends as `waiting`, and is resumed after `answer`.
        """
        self._store, self._local_person, self.suspends_runs = store, local_person, suspends_runs
        self._home_tenant = store.tenant
        self._prompt_lock = asyncio.Lock()
        self._pending: dict[tuple[str, str], asyncio.Future[None]] = {}
        """By tenant and question id; shared by the objects of all tenants."""

    def of(self, tenant: str) -> Questions:
        """The questions of another tenant; the person at the terminal is not asked."""
        questions = copy.copy(self)
        questions._store = self._store.of(tenant)
        return questions

    @property
    def _available_person(self) -> UserPrompter | None:
        return self._local_person if self._store.tenant == self._home_tenant else None

    def person(self, session_id: str) -> UserPrompter:
        """The person who is asked in a session."""
        return _SessionPerson(self, session_id)

    async def waiting(self, session_id: str = "") -> Sequence[tuple[str, Question]]:
        """The unanswered questions, with their sessions."""
        found = await self._store.waiting(session_id)
        return [
            (stored.session_id, _decoded(stored.question))
            for stored in found
            if not _is_caller_tool(stored)
        ]

    async def answer(self, question_id: str, answer: UserAnswer) -> str:
        """Answer a question; return the problem, or an empty text. The first answer counts."""
        stored = await self._store.get(question_id)
        if stored is None or _is_caller_tool(stored):
            return "there is no such question"
        if problem := answer_problem(_decoded(stored.question), answer):
            return problem
        if not await self._store.answer(question_id, msgspec.json.encode(answer)):
            return "it was already answered, or its run no longer waits for the answer"
        pending = self._pending.get((self._store.tenant, question_id))
        if pending is not None and not pending.done():
            pending.set_result(None)
        return ""

    async def stored_answer(self, session_id: str, question: Question) -> UserAnswer | None:
        """The answer to a question if there is one; the question is stored in any case."""
        stored = await self._store.ask(question.id, session_id, msgspec.json.encode(question))
        return (
            None if stored.answer is None else msgspec.json.decode(stored.answer, type=UserAnswer)
        )

    async def ask(self, session_id: str, question: Question) -> UserAnswer | None:
        """Wait for an answer from any source; None if no person can be asked."""
        answer = await self.stored_answer(session_id, question)
        if answer is not None or (self._available_person is None and not self.suspends_runs):
            return answer
        pending, key = asyncio.get_running_loop().create_future(), (self._store.tenant, question.id)
        self._pending[key] = pending
        asking = asyncio.create_task(self._ask_locally(session_id, question))
        try:
            await asyncio.wait((pending, asking), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            del self._pending[key]
            asking.cancel()
            await asyncio.wait([asking])
        return await self.stored_answer(session_id, question)

    async def _ask_locally(self, session_id: str, question: Question) -> None:
        if (face := self._available_person) is None:
            await asyncio.Event().wait()
            return
        async with self._prompt_lock:
            answer = await face.ask(question)
        if answer is not None:
            await self._store.answer(question.id, msgspec.json.encode(answer))


@dataclass(frozen=True, slots=True)
class _SessionPerson:
    questions: Questions
    session_id: str

    async def ask(self, question: Question) -> UserAnswer | None:
        return await self.questions.ask(self.session_id, question)


@dataclass(frozen=True, slots=True)
class PendingQuestions(Policy):
    """Suspends the run until the user has answered its question."""

    questions: Questions
    session_id: str
    approver: Approver
    """Asked for everything else."""

    async def judge(self, call: Call) -> Verdict:
        """Allow a question when it has its answer."""
        if call.name != QUESTION_TOOL or not self.questions.suspends_runs:
            return ALLOW
        question = question_for_call(call)
        if (
            question_problem(question)
            or await self.questions.stored_answer(self.session_id, question) is not None
        ):
            return ALLOW
        return Ask(QUESTION_CODE, question.text)

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Report a question as pending; pass other requests to the approver."""
        if ask.code == QUESTION_CODE and call.name == QUESTION_TOOL:
            return Approval(Decision.PENDING, ask.reason)
        return await self.approver.approve(call, ask)


class _QuestionKind(Struct):
    caller: bool = False


def _is_caller_tool(stored: StoredQuestion) -> bool:
    """Whether it is not a question, but a call that the caller's program runs."""
    return msgspec.json.decode(stored.question, type=_QuestionKind).caller


def _decoded(blob: bytes) -> Question:
    return msgspec.json.decode(blob, type=Question)
