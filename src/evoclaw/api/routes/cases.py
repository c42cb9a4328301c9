"""Routes of cases: list and check them, and show one."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.genomes import TAGS, CaseView, case_view
from evoclaw.api.routes.governance import check_operator
from evoclaw.core.errors import ConfigError
from evoclaw.evolution.cases import CASE_NAME, CaseFile, CaseFolder, Split, read_case
from evoclaw.orchestrator.people.access import TokenScope

CaseName = Annotated[
    str, PathParameter(pattern=f"^{CASE_NAME.pattern}$", description="The name of the case.")
]
CheckRecordings = Annotated[
    bool, QueryParameter(description="Whether to read the recordings too, and name broken ones.")
]


class CaseList(Struct, frozen=True):
    """The cases of this service."""

    items: tuple[CaseView, ...]
    """The valid cases, by name."""
    problems: tuple[str, ...]
    """What is wrong with the other files."""


class CaseText(Struct, frozen=True, kw_only=True):
    """The file of a case."""

    case: CaseView | None
    """The case; null: the file is not valid."""
    text: str
    """The file, as TOML."""
    problem: str
    """What is wrong with the file or its recording; empty: nothing."""


@get("/v1/cases", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def list_cases(
    parts: InjectedDependencies, caller: InjectedCaller, check: CheckRecordings = False
) -> CaseList:
    """List the cases for evaluations, and what is wrong with the other files."""
    check_operator(parts, caller)
    folder = require(parts.cases, "cases")
    found, problems = await asyncio.to_thread(_read_cases, folder, check=check)
    return CaseList(tuple(map(case_view, found)), tuple(problems))


@get("/v1/cases/{name:str}", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_case(
    parts: InjectedDependencies, caller: InjectedCaller, name: CaseName
) -> CaseText:
    """Show the text of a case.

    Only a person may see one that is not a train case, as what proposes genomes must not know it:
    the token also needs the scope `human`.
    """
    check_operator(parts, caller)
    shown = await asyncio.to_thread(_read_text, require(parts.cases, "cases"), name)
    is_train = shown.case is not None and shown.case.split is Split.TRAIN
    if not is_train and not caller.may(TokenScope.HUMAN):
        text = "Only a person may see a case that is not of the split train: the token needs the "
        raise ApiError(403, "forbidden", f"{text}scope 'human'.")
    return shown


def _read_cases(folder: CaseFolder, *, check: bool) -> tuple[list[CaseFile], list[str]]:
    found, problems = folder.read()
    if not check:
        return found, problems
    broken = {case.name: why for case in found if (why := _recording_problem(case))}
    return [case for case in found if case.name not in broken], [*problems, *broken.values()]


def _read_text(folder: CaseFolder, name: str) -> CaseText:
    path = folder.folder / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise not_found("case") from None
    try:
        case = read_case(path)
    except ConfigError as problem:
        return CaseText(case=None, text=text, problem=str(problem))
    return CaseText(case=case_view(case), text=text, problem=_recording_problem(case))


def _recording_problem(case: CaseFile) -> str:
    try:
        case.records()
    except ConfigError as problem:
        return str(problem)
    return ""


ROUTES: tuple[HTTPRouteHandler, ...] = (list_cases, show_case)
