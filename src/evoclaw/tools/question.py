"""The tool `question`: asks the user of the run and waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from evoclaw.core.bound import Output
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock
from evoclaw.core.tools import Call
from evoclaw.tools.define import tool

NAME = "question"
NOBODY = (
    "Error: Nobody can be asked here. "
    "Go on without an answer, choose what is safest, and say in the end what you assumed."
)


class Question(Struct, frozen=True, omit_defaults=True):
    """A question to the user."""

    id: str
    """The same when the call is run again; an answer is bound to it."""
    text: str
    options: tuple[str, ...] = ()
    """The options to choose from; empty asks for free text."""
    multiple: bool = False
    """Several options may be chosen."""
    own_words: bool = True
    """The user may answer with free text instead of an option."""


class Answer(Struct, frozen=True, omit_defaults=True):
    """The answer of the user."""

    chosen: tuple[str, ...] = ()
    """The chosen options."""
    text: str = ""
    """Free text."""


class Person(Protocol):
    """Asks the user through the interface of the run: terminal, HTTP API or channel."""

    async def ask(self, question: Question) -> Answer | None:
        """Wait for the answer; None if no user can be asked. Asking again gives the same answer."""
        ...


class NobodyToAsk:
    """For runs without a user who could answer."""

    async def ask(self, question: Question) -> Answer | None:
        """None: no user can be asked."""
        return None


class ScriptedPerson:
    """A user with prepared answers: for tests and examples."""

    def __init__(self, *answers: Answer | str) -> None:
        self._answers = iter(answers)
        self._given: dict[str, Answer] = {}
        self.asked: list[Question] = []
        """The questions that were asked, in order."""

    async def ask(self, question: Question) -> Answer | None:
        """The next answer; a question that was asked before gets the same answer."""
        if question.id in self._given:
            return self._given[question.id]
        self.asked.append(question)
        prepared = next(self._answers, None)
        if prepared is None:
            return None
        answer = to_answer(question, prepared) if isinstance(prepared, str) else prepared
        self._given[question.id] = answer
        return answer


def to_answer(question: Question, said: str) -> Answer:
    """Parse what the user typed: an option or its number, several with commas, or free text."""
    parts = [part.strip() for part in said.split(",")] if question.multiple else [said.strip()]
    chosen = [_option(question.options, part) for part in parts]
    if all(option is not None for option in chosen):
        return Answer(tuple(dict.fromkeys(option for option in chosen if option is not None)))
    return Answer(text=said.strip())


def _option(options: Sequence[str], said: str) -> str | None:
    if said.isdecimal() and 1 <= int(said) <= len(options):
        return options[int(said) - 1]
    return next((option for option in options if option.casefold() == said.casefold()), None)


def problem_of(question: Question, answer: Answer) -> str:
    """Why an answer is not valid, so that the interface asks again; empty if it is valid."""
    if unknown := [option for option in answer.chosen if option not in question.options]:
        return f"{unknown[0]!r} is none of the options"
    if len(answer.chosen) > 1 and not question.multiple:
        return "only one option may be chosen"
    if answer.text and question.options and not question.own_words:
        return "one of the options must be chosen"
    if not answer.chosen and not answer.text.strip():
        return "there is no answer"
    return ""


def question_of(call: Call) -> Question:
    """The question of a call; the same for all its attempts."""
    arguments = call.arguments
    return Question(
        call.request_id.rpartition(".")[0] or call.request_id,
        arguments["question"],
        tuple(arguments.get("options", ())),
        arguments.get("multiple", False),
        arguments.get("own_words", True),
    )


def fault_of(question: Question) -> str:
    """Why a question is not valid, as an error for the model; empty if it is valid."""
    options = question.options
    if len(set(options)) < len(options) or not all(option.strip() for option in options):
        return "Error: The options must differ, and none may be empty."
    return ""


@tool("interact", timeout=300, max_timeout=300, effect="read", resources=(), idempotent=True)
async def question(
    person: Person,
    call: Call,
    question: Annotated[str, Meta(min_length=1, max_length=4_000)],
    options: Annotated[list[str], Meta(max_length=20)] = [],  # noqa: B006
    multiple: bool = False,
    own_words: bool = True,
) -> Output:
    """Ask the user, and wait for the answer. Ask only what you cannot find out by yourself.

    Args:
        person: Who is asked.
        call: Which call this is.
        question: What to ask, in one or two sentences.
        options: What the user may choose from; none asks for their own words.
        multiple: Whether several options may be chosen.
        own_words: Whether the user may answer something that is none of the options.
    """
    asked = question_of(call)
    if fault := fault_of(asked):
        raise ToolFailure(ErrorKind.INVALID_PARAMS, fault)
    answer = await person.ask(asked)
    if answer is None:
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, NOBODY)
    if problem := problem_of(asked, answer):
        text = f"Error: The answer cannot be used: {problem}. Ask again, in other words."
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, text)
    parts = [", ".join(answer.chosen), answer.text.strip()]
    text = "; ".join(part for part in parts if part)
    details = {"question_id": asked.id, "chosen": list(answer.chosen), "text": answer.text}
    return Output((TextBlock(f"The user answered: {text}"),), details)
