"""Assembles an edge from its dependencies: a link, a journal, and the ports of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports
from evoclaw.edge.device import (
    UNSIGNED_COMMANDS,
    DeviceLimits,
    EdgeIdentity,
    EdgeParts,
    OrchestratorClock,
)
from evoclaw.edge.edge import Edge
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes, GenomeTimeouts, no_skills
from evoclaw.edge.model_files import FindModelFile, no_model_files
from evoclaw.edge.model_receiver import ModelReceiver
from evoclaw.edge.nested_calls import PendingNestedCalls
from evoclaw.edge.outputs import KeepLargeOutput, artifact_tool
from evoclaw.edge.plans import CallAudit, GrantCheck, Planner, ToolPlans, add_spans, no_grants
from evoclaw.edge.prompts import PromptPlans
from evoclaw.edge.receipts import Receipts
from evoclaw.edge.tuned_prompts import PromptModel
from evoclaw.executors.call_steps import WithoutUndoTool
from evoclaw.executors.local import LocalExecutor
from evoclaw.skills.tuned import GenomeSkills, SkillTools
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.link import Link
from evoclaw.trust.receipts import DeviceKey

if TYPE_CHECKING:
    from evoclaw.observe.tracing.tracing import Tracing

_USUAL, _ANY_MODEL = DeviceLimits(), PromptModel()


async def assemble(
    who: EdgeIdentity,
    link: Link,
    journal: Journal,
    ports: Ports,
    *,
    has_model: bool = False,
    limits: DeviceLimits = _USUAL,
    check: GrantCheck = no_grants,
    clock: OrchestratorClock | None = None,
    accepts: frozenset[str] | None = None,
    signed: frozenset[str] = frozenset(),
    skills: SkillTools = no_skills,
    artifacts: ArtifactStore | None = None,
    find_model_file: FindModelFile = no_model_files,
    model_receiver: ModelReceiver | None = None,
    images: BeforeImages | None = None,
    key: DeviceKey | None = None,
    notes: CallAudit | None = None,
    damage: str = "",
    tracing: Tracing | None = None,
    model: PromptModel = _ANY_MODEL,
) -> Edge:
    """An edge that runs the tools of these ports, and prompts if their provider is a real one.

    With artifacts, output that is too large to send is stored there; files that `find_model_file`
    finds may be copied by other machines, and `model_receiver` installs those that orchestrators
    push; with a key, every result is signed; with notes, every call is audited; with tracing, every
    call is a span. `model` says what answers prompts, and with which tools and skills. The commands
    in `signed` need a grant though others of their kind need none. The genome may enable some of
    the `skills` only.
    `damage` is reported to orchestrators.
    """
    genomes = Genomes(
        journal,
        skills=skills,
        models=model.names,
        model_retries=model.max_retries,
        concurrency=limits.concurrency,
    )
    outcomes = Outcomes()
    nested = PendingNestedCalls()
    await genomes.load()
    offered = Pipeline.of(ports.executor).with_steps(GenomeSkills(genomes.current, skills))
    if artifacts is not None:
        offered = offered.with_steps(
            KeepLargeOutput(artifacts, limit=limits.output_bytes),
            routes=[LocalExecutor([artifact_tool(artifacts)], sound=True)],
        )
    # A person approved the tools as they are configured: a lower limit is no other tool.
    pipeline = offered.with_steps(GenomeTimeouts(genomes.current))
    ports = replace(ports, executor=pipeline)
    run: Planner = ToolPlans(ports, check=check, whole=artifacts is not None, notes=notes).plan
    offering = replace(ports, executor=pipeline.with_steps(WithoutUndoTool()))
    prompts = PromptPlans(
        offering if has_model else None,
        genomes.current,
        model=model,
        check=check,
        outcomes=outcomes,
        nested=nested,
    )
    edge = Edge(
        EdgeParts(
            who,
            link,
            journal,
            offered,
            add_spans({"tool": run, "execute": run, "prompt": prompts.plan}, tracing, who.agent_id),
            genomes,
            outcomes,
            limits,
            has_model=has_model,
            clock=clock or OrchestratorClock(),
            accepts=accepts,
            check=check,
            unsigned=UNSIGNED_COMMANDS - signed,
            artifacts=artifacts,
            find_model_file=find_model_file,
            model_receiver=model_receiver,
            images=images,
            nested=nested,
            damage=damage,
        )
    )
    nested.send = edge.reports.send
    if key is not None:
        edge.reports.receipts = Receipts(key, who, ports.executor)
    return edge
