"""Routes of the texts of agents and workflows: read, check, save and delete a definition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies, ReloadResult
from evoclaw.api.errors import ApiError, require
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.routes.parameters import NO_NUL_PATTERN, AgentName, ShortText, WorkflowName
from evoclaw.core.definition_text import DefinitionText, InvalidDefinition
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.workflows.definition_files import WorkflowFiles

T = TypeVar("T")
MAX_DEFINITION_CHARS = 200_000
DefinitionBody = Annotated[str, Meta(max_length=MAX_DEFINITION_CHARS, pattern=NO_NUL_PATTERN)]
SeenDigest = Annotated[
    str,
    QueryParameter(max_length=200, description="The `sha256` of the text that you saw."),
]


class DefinitionUpdate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new text of a definition."""

    text: DefinitionBody
    """TOML: one `[[agents]]` table, or a workflow file."""
    sha256: ShortText = ""
    """The digest of the text that you changed; another one is refused. Empty: create it."""
    dry_run: bool = False
    """Only check the text, and save nothing."""


class SavedDefinition(Struct, frozen=True):
    """A definition after a change."""

    saved: bool
    """False after a dry run."""
    text: str
    """The text as it is now; as it would be after a dry run."""
    sha256: str
    """The digest of the text, for the next change."""
    reload: ReloadResult | None = None
    """What changed with the settings file; null for a workflow, which has a file of its own."""


class ScheduleUpdate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new schedule of a workflow; without `cron` and `every_s` it has none."""

    sha256: ShortText
    """The digest of the file that you saw; another one is refused."""
    cron: ShortText = ""
    """Five fields, such as `0 7 * * *`."""
    every_s: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
    """Seconds between two starts, instead of `cron`."""
    timezone: ShortText = ""
    """Empty: UTC."""
    inputs: dict[str, JSON] | None = None
    """The inputs of each start; null: as they are."""
    enabled: bool = True
    """Whether it starts by itself."""


def _check_editor(parts: ApiDependencies, caller: Caller) -> None:
    """Refuse programs: a definition decides which calls need the approval of a person."""
    check_operator(parts, caller)
    if not caller.may(TokenScope.HUMAN):
        raise ApiError(
            403,
            "forbidden",
            "Only a person may change a definition: the token needs the scope 'human'.",
        )


def _located(work: Callable[[], T]) -> T:
    """Do the work; an invalid definition is a 409 with its line and setting."""
    try:
        return work()
    except ConfigError as problem:
        where = f"Line {problem.line}: " if isinstance(problem, InvalidDefinition) else ""
        raise ApiError(
            409,
            "invalid_definition",
            f"{where if problem.line else ''}{problem}",
            details={"line": problem.line if where else 0, "setting": problem.setting},
        ) from None


@get("/v1/agents/{name:str}/definition", scope=TokenScope.ADMIN, tags=["agents"])
async def read_agent(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> DefinitionText:
    """Read the `[[agents]]` table of an agent as text, with its comments."""
    check_operator(parts, caller)
    return require(parts.agent_definitions, "definitions").read(name)


@put("/v1/agents/{name:str}/definition", scope=TokenScope.ADMIN, tags=["agents"])
async def save_agent(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[DefinitionUpdate],
) -> SavedDefinition:
    """Check and save an agent in the settings file; new runs use it at once.

    Only a person may: the token also needs the scope `human`. Comments and other settings stay.
    """
    _check_editor(parts, caller)
    definitions = require(parts.agent_definitions, "definitions")
    reload = require(parts.reload, "settings")
    if data.dry_run:
        _located(lambda: definitions.check(name, data.text, data.sha256))
        return SavedDefinition(False, data.text, data.sha256)
    done = _located(lambda: definitions.save(name, data.text, data.sha256, reload))
    found = definitions.read(name)
    return SavedDefinition(True, found.text, found.sha256, done)


@delete("/v1/agents/{name:str}", scope=TokenScope.ADMIN, tags=["agents"], status_code=200)
async def delete_agent(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName, sha256: SeenDigest = ""
) -> ReloadResult:
    """Delete an agent from the settings file; its sessions and runs stay.

    Only a person may: the token also needs the scope `human`.
    """
    _check_editor(parts, caller)
    definitions = require(parts.agent_definitions, "definitions")
    reload = require(parts.reload, "settings")
    return _located(lambda: definitions.remove(name, sha256, reload))


@get("/v1/workflows/{name:str}/definition", scope=TokenScope.ADMIN, tags=["workflows"])
async def read_workflow(
    parts: InjectedDependencies, caller: InjectedCaller, name: WorkflowName
) -> DefinitionText:
    """Read the file of a workflow, also of an invalid one."""
    check_operator(parts, caller)
    return await asyncio.to_thread(_files(parts).read, name)


@put("/v1/workflows/{name:str}/definition", scope=TokenScope.ADMIN, tags=["workflows"])
async def save_workflow(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: WorkflowName,
    data: JSONBody[DefinitionUpdate],
) -> SavedDefinition:
    """Check and save a workflow in its file; runs that start later use it.

    Only a person may: the token also needs the scope `human`.
    """
    _check_editor(parts, caller)
    files = _files(parts)
    if data.dry_run:
        await asyncio.to_thread(_located, lambda: files.check(name, data.text, data.sha256))
        return SavedDefinition(False, data.text, data.sha256)
    return await _save_workflow(files, name, data.text, data.sha256)


@put("/v1/workflows/{name:str}/schedule", scope=TokenScope.ADMIN, tags=["workflows"])
async def save_schedule(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: WorkflowName,
    data: JSONBody[ScheduleUpdate],
) -> SavedDefinition:
    """Change when a workflow starts by itself; the rest of its file stays as it is.

    Only a person may: the token also needs the scope `human`.
    """
    _check_editor(parts, caller)
    files, edit = _files(parts), require(parts.edit_toml, "definitions")
    current = await asyncio.to_thread(files.read, name)
    try:
        text = edit(current.text, _schedule_values(data))
    except ConfigError as problem:
        raise ApiError(409, "invalid_definition", str(problem)) from None
    return await _save_workflow(files, name, text, data.sha256)


def _schedule_values(data: ScheduleUpdate) -> Mapping[tuple[str, ...], JSON]:
    if not data.cron and data.every_s is None:
        return {("schedule",): None}
    inputs = {} if data.inputs is None else {("schedule", "inputs"): data.inputs or None}
    return {
        **inputs,
        ("schedule", "cron"): data.cron or None,
        ("schedule", "every_s"): data.every_s,
        ("schedule", "timezone"): data.timezone or None,
        ("schedule", "enabled"): None if data.enabled else False,
    }


@delete("/v1/workflows/{name:str}", scope=TokenScope.ADMIN, tags=["workflows"], status_code=204)
async def delete_workflow(
    parts: InjectedDependencies, caller: InjectedCaller, name: WorkflowName, sha256: SeenDigest = ""
) -> None:
    """Delete the file of a workflow; runs that started stay, and continue.

    Only a person may: the token also needs the scope `human`.
    """
    _check_editor(parts, caller)
    files = _files(parts)
    await asyncio.to_thread(_located, lambda: files.remove(name, sha256))


def _files(parts: ApiDependencies) -> WorkflowFiles:
    return require(parts.workflows, "workflows").files


async def _save_workflow(
    files: WorkflowFiles, name: str, text: str, sha256: str
) -> SavedDefinition:
    found = await asyncio.to_thread(_located, lambda: files.save(name, text, sha256))
    return SavedDefinition(True, found.text, found.sha256)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    read_agent,
    save_agent,
    delete_agent,
    read_workflow,
    save_workflow,
    save_schedule,
    delete_workflow,
)
