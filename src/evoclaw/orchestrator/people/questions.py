"""Questions to the person of a session: kept until answered, also when the run ended meanwhile."""

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
    NAME,
    Answer,
    Person,
    Question,
    fault_of,
    problem_of,
    question_of,
)

CODE = "question"
"""Of the verdict that stops a run until a person has answered."""


class Questions:
    """What the people of one tenant are asked, by whichever face they can be reached."""

    def __init__(
        self, store: QuestionStore, *, face: Person | None = None, parks: bool = False
    ) -> None:
        """Choose how people are reached.

        Args:
            store: Where questions and answers of a tenant are kept.
            face: Who is there now, as the person at a terminal: one of this tenant.
            parks: Whether a run stops as `waiting` until `answer` was called and it is resumed.
        """
        self._store, self._face, self.parks = store, face, parks
        self._home = store.tenant
        self._one_at_a_time = asyncio.Lock()
        self._waiters: dict[tuple[str, str], asyncio.Future[None]] = {}
        """By tenant and question; the same for all tenants."""

    def of(self, tenant: str) -> Questions:
        """The questions of another tenant; the person at the terminal is not asked those."""
        others = copy.copy(self)
        others._store = self._store.of(tenant)
        return others

    @property
    def _here(self) -> Person | None:
        return self._face if self._store.tenant == self._home else None

    def person(self, session_id: str) -> Person:
        """The person of a session."""
        return _PersonOf(self, session_id)

    async def waiting(self, session_id: str = "") -> Sequence[tuple[str, Question]]:
        """What is asked and not answered yet: the session, and the question."""
        found = await self._store.waiting(session_id)
        return [(one.session_id, _decoded(one.question)) for one in found if not _is_call(one)]

    async def answer(self, question_id: str, answer: Answer) -> str:
        """Answer a question; what is wrong with the answer, if anything. The first one counts."""
        stored = await self._store.get(question_id)
        if stored is None or _is_call(stored):
            return "there is no such question"
        if problem := problem_of(_decoded(stored.question), answer):
            return problem
        if not await self._store.answer(question_id, msgspec.json.encode(answer)):
            return "it was answered already, or nobody waits for the answer any more"
        waiter = self._waiters.get((self._store.tenant, question_id))
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return ""

    async def given(self, session_id: str, question: Question) -> Answer | None:
        """The answer to a question if there is one; the question is kept in any case."""
        stored = await self._store.ask(question.id, session_id, msgspec.json.encode(question))
        return None if stored.answer is None else msgspec.json.decode(stored.answer, type=Answer)

    async def ask(self, session_id: str, question: Question) -> Answer | None:
        """Wait for an answer, wherever it comes from; None if nobody can be asked."""
        given = await self.given(session_id, question)
        if given is not None or (self._here is None and not self.parks):
            return given
        waiter, key = asyncio.get_running_loop().create_future(), (self._store.tenant, question.id)
        self._waiters[key] = waiter
        asking = asyncio.create_task(self._ask_face(session_id, question))
        try:
            await asyncio.wait((waiter, asking), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            del self._waiters[key]
            asking.cancel()
            await asyncio.wait([asking])
        return await self.given(session_id, question)

    async def _ask_face(self, session_id: str, question: Question) -> None:
        if (face := self._here) is None:
            await asyncio.Event().wait()
            return
        async with self._one_at_a_time:
            answer = await face.ask(question)
        if answer is not None:
            await self._store.answer(question.id, msgspec.json.encode(answer))


@dataclass(frozen=True, slots=True)
class _PersonOf:
    questions: Questions
    session_id: str

    async def ask(self, question: Question) -> Answer | None:
        return await self.questions.ask(self.session_id, question)


@dataclass(frozen=True, slots=True)
class PendingQuestions(Policy):
    """Suspends the run until the user has answered its question."""

    questions: Questions
    session_id: str
    approver: Approver
    """Who is asked everything else."""

    async def judge(self, call: Call) -> Verdict:
        """Allow a question when it has its answer."""
        if call.name != NAME or not self.questions.parks:
            return ALLOW
        question = question_of(call)
        if fault_of(question) or await self.questions.given(self.session_id, question) is not None:
            return ALLOW
        return Ask(CODE, question.text)

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Say that the answer is still to come; leave the rest to the one who is asked."""
        if ask.code == CODE and call.name == NAME:
            return Approval(Decision.PENDING, ask.reason)
        return await self.approver.approve(call, ask)


class _Kind(Struct):
    caller: bool = False


def _is_call(stored: StoredQuestion) -> bool:
    """Whether it is no question to a person, but a call that its caller's program is to run."""
    return msgspec.json.decode(stored.question, type=_Kind).caller


def _decoded(blob: bytes) -> Question:
    return msgspec.json.decode(blob, type=Question)
