"""Runs of cases by the real loop, with a model that passes a case as planted."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from evoclaw.core.agent import LoopSettings
from evoclaw.core.messages import Reply, user
from evoclaw.core.ports import Ports
from evoclaw.core.state import new_run
from evoclaw.evolution.cases import Case, CaseFile
from evoclaw.evolution.evaluation import CaseRun
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.fake import FakeOps

LOOKUP = {
    "tools": [{"name": "lookup"}],
    "results": [{"tool": "lookup", "arguments": {"what": "it"}, "text": "yes"}],
    "checks": [{"kind": "answer", "equals": "yes"}],
    "split": "validation",
}


def case_of(name: str, **fields: Any) -> CaseFile:
    case = msgspec.convert({"message": f"Look up {name}.", **LOOKUP, **fields}, Case)
    return CaseFile(name, Path(f"{name}.toml"), case)


def planted(
    passes: Mapping[str, float] | Callable[[str], float],
    *,
    seed: int = 0,
    cost: float | None = 0.0,
    argument: str = "it",
    on_run: Callable[[str, Path], None] = lambda name, workspace: None,
) -> Callable[[CaseFile, Path], AbstractAsyncContextManager[CaseRun]]:
    """Prepares runs that pass each case with a probability."""
    chance = random.Random(seed)

    @asynccontextmanager
    async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        on_run(case.name, workspace)
        share = passes(case.name) if callable(passes) else passes[case.name]
        answer = "yes" if chance.random() < share else "no"
        recorded = RecordedResults(case)
        replies = [calls(("lookup", {"what": argument})), says(answer)]
        ports = Ports(
            Scripted(*(_priced(reply, cost) for reply in replies)), recorded, Autonomy(Level.FULL)
        )
        yield CaseRun(
            new_run([user(case.case.message)]), ports, LoopSettings(), FakeOps(), recorded
        )

    return open_run


def _priced(reply: Reply, cost: float | None) -> Reply:
    return msgspec.structs.replace(reply, cost=cost)
