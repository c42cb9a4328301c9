"""The route that undoes a run."""

from __future__ import annotations

from litestar import post
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import require
from evoclaw.api.routes.parameters import RunId
from evoclaw.api.routes.runs import own_run
from evoclaw.orchestrator.people.access import TokenScope
from evoclaw.orchestrator.runs.undo import UndoResult, undo_run


@post("/v1/runs/{run_id:str}/undo", scope=TokenScope.TOOLS_EXECUTE, tags=["runs"], status_code=200)
async def undo(parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId) -> UndoResult:
    """Undo the file changes of a run that has ended, under the policies of its agent."""
    view = await own_run(parts, caller, run_id)
    return await undo_run(require(parts.runs, "runs"), caller.principal, view)


ROUTES: tuple[HTTPRouteHandler, ...] = (undo,)
