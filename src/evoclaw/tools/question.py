"""The tool `question`: asks the user of the run and waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock
from evoclaw.core.tools import Call
from evoclaw.tools.define import tool

QUESTION_TOOL = "question"
NO_USER_MESSAGE = (
    "Error: No user can be asked here. "
    "Continue without an answer, choose what is safest, and say in the end what you assumed."
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


class UserAnswer(Struct, frozen=True, omit_defaults=True):
    """The answer of the user."""

    chosen: tuple[str, ...] = ()
    """The chosen options."""
    text: str = ""
    """Free text."""


class UserPrompter(Protocol):
    """Asks the user through the interface of the run: terminal, HTTP API or channel."""

    async def ask(self, question: Question) -> UserAnswer | None:
        """Wait for the answer; None if no user can be asked. Asking again gives the same answer."""
        ...


class ScriptedUser:
    """A user with prepared answers: for tests and examples."""

    def __init__(self, *answers: UserAnswer | str) -> None:
        self._answers = iter(answers)
        self._given: dict[str, UserAnswer] = {}
        self.asked: list[Question] = []
        """The questions that were asked, in order."""

    async def ask(self, question: Question) -> UserAnswer | None:
        """The next answer; a question that was asked before gets the same answer."""
        if question.id in self._given:
            return self._given[question.id]
        self.asked.append(question)
        prepared = next(self._answers, None)
        if prepared is None:
            return None
        answer = parse_answer(question, prepared) if isinstance(prepared, str) else prepared
        self._given[question.id] = answer
        return answer


def parse_answer(question: Question, typed: str) -> UserAnswer:
    """Parse what the user typed: an option or its number, several with commas, or free text."""
    parts = [part.strip() for part in typed.split(",")] if question.multiple else [typed.strip()]
    chosen = [_option(question.options, part) for part in parts]
    if all(option is not None for option in chosen):
        return UserAnswer(tuple(dict.fromkeys(option for option in chosen if option is not None)))
    return UserAnswer(text=typed.strip())


def _option(options: Sequence[str], typed: str) -> str | None:
    if typed.isdecimal() and 1 <= int(typed) <= len(options):
        return options[int(typed) - 1]
    return next((option for option in options if option.casefold() == typed.casefold()), None)


def answer_problem(question: Question, answer: UserAnswer) -> str:
    """Why an answer is not valid, so that the interface asks again; empty if it is valid."""
    if unknown := [option for option in answer.chosen if option not in question.options]:
        return f"{unknown[0]!r} is not one of the options"
    if len(answer.chosen) > 1 and not question.multiple:
        return "only one option may be chosen"
    if answer.text and question.options and not question.own_words:
        return "one of the options must be chosen"
    if not answer.chosen and not answer.text.strip():
        return "there is no answer"
    return ""


def question_for_call(call: Call) -> Question:
    """The question of a call; the same for all its attempts."""
    arguments = call.arguments
    return Question(
        call.request_id.rpartition(".")[0] or call.request_id,
        arguments["question"],
        tuple(arguments.get("options", ())),
        arguments.get("multiple", False),
        arguments.get("own_words", True),
    )


def question_problem(question: Question) -> str:
    """Why a question is not valid, as an error for the model; empty if it is valid."""
    options = question.options
    if len(set(options)) < len(options) or not all(option.strip() for option in options):
        return "Error: The options must differ, and none may be empty."
    return ""


@tool("interact", timeout=300, max_timeout=300, effect="read", resources=(), idempotent=True)
async def question(
    person: UserPrompter,
    call: Call,
    question: Annotated[str, Meta(min_length=1, max_length=4_000)],
    options: Annotated[list[str], Meta(max_length=20)] = [],  # noqa: B006
    multiple: bool = False,
    own_words: bool = True,
) -> ToolOutput:
    """Ask the user, and wait for the answer. Ask only what you cannot find out yourself.

    Args:
        person: Who is asked.
        call: Which call this is.
        question: What to ask, in one or two sentences.
        options: What the user may choose from; none: the user answers in free text.
        multiple: Whether several options may be chosen.
        own_words: Whether the user may give an answer that is not one of the options.
    """
    prompt = question_for_call(call)
    if fault := question_problem(prompt):
        raise ToolFailure(ErrorKind.INVALID_PARAMS, fault)
    answer = await person.ask(prompt)
    if answer is None:
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, NO_USER_MESSAGE)
    if problem := answer_problem(prompt, answer):
        text = f"Error: The answer cannot be used: {problem}. Ask again with a clearer question."
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, text)
    parts = [", ".join(answer.chosen), answer.text.strip()]
    text = "; ".join(part for part in parts if part)
    details = {"question_id": prompt.id, "chosen": list(answer.chosen), "text": answer.text}
    return ToolOutput((TextBlock(f"The user answered: {text}"),), details)
