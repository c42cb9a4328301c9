"""The tool `question`: ask the person whose run it is."""

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
    """Something a person is asked."""

    id: str
    """The same when the call is run again: an answer is bound to it, and to nothing else."""
    text: str
    options: tuple[str, ...] = ()
    """What may be chosen from; empty asks for the person's own words."""
    multiple: bool = False
    """Several options may be chosen."""
    own_words: bool = True
    """Something that is none of the options may be answered."""


class Answer(Struct, frozen=True, omit_defaults=True):
    """What the person said."""

    chosen: tuple[str, ...] = ()
    """Of the options."""
    text: str = ""
    """In the person's own words."""


class Person(Protocol):
    """Who can be asked, on whatever face the run has."""

    async def ask(self, question: Question) -> Answer | None:
        """Wait for the answer; None if nobody can be asked. A question asked again is the same."""
        ...


class NobodyToAsk:
    """The person of a run that nobody watches."""

    async def ask(self, question: Question) -> Answer | None:
        """Say that nobody is there."""
        return None


class ScriptedPerson:
    """A person who says what was written down before: for tests and examples."""

    def __init__(self, *answers: Answer | str) -> None:
        self._answers = iter(answers)
        self._given: dict[str, Answer] = {}
        self.asked: list[Question] = []
        """What was asked, in order."""

    async def ask(self, question: Question) -> Answer | None:
        """Give the next answer; to a question that was asked before, the same one."""
        if question.id in self._given:
            return self._given[question.id]
        self.asked.append(question)
        said = next(self._answers, None)
        if said is None:
            return None
        answer = to_answer(question, said) if isinstance(said, str) else said
        self._given[question.id] = answer
        return answer


def to_answer(question: Question, said: str) -> Answer:
    """Read what a person typed: an option or its number, several with commas, or own words."""
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
    """What is wrong with an answer, if anything: for faces, to ask again."""
    if unknown := [one for one in answer.chosen if one not in question.options]:
        return f"{unknown[0]!r} is none of the options"
    if len(answer.chosen) > 1 and not question.multiple:
        return "only one option may be chosen"
    if answer.text and question.options and not question.own_words:
        return "one of the options must be chosen"
    if not answer.chosen and not answer.text.strip():
        return "there is no answer"
    return ""


def question_of(call: Call) -> Question:
    """The question of a call; one and the same for all its attempts."""
    asked = call.arguments
    return Question(
        call.request_id.rpartition(".")[0] or call.request_id,
        asked["question"],
        tuple(asked.get("options", ())),
        asked.get("multiple", False),
        asked.get("own_words", True),
    )


def fault_of(question: Question) -> str:
    """What is wrong with a question, if anything, worded for the model."""
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
        told = f"Error: The answer cannot be used: {problem}. Ask again, in other words."
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, told)
    said = [", ".join(answer.chosen), answer.text.strip()]
    text = "; ".join(part for part in said if part)
    details = {"question_id": asked.id, "chosen": list(answer.chosen), "text": answer.text}
    return Output((TextBlock(f"The user answered: {text}"),), details)
