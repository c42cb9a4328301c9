"""The call pipelines, step by step: of a run on this machine, of the service, and of an edge.

`evoclaw policy explain`, `GET /v1/policy` and the guide on governance print these lists. Each step
is a class; its docstring says what it does. Imports are local: an edge loads only its own steps.
"""

from __future__ import annotations

from functools import cache

from evoclaw.core.pipeline import PipelineSpec


@cache
def local_pipeline() -> PipelineSpec:
    """Calls of `evoclaw run`, `evoclaw eval`, `evoclaw chat` without a service, MCP clients."""
    from evoclaw.core.tuned_runs import GenomeTools
    from evoclaw.edge.undo import KeepBeforeImages
    from evoclaw.executors.call_steps import (
        DefaultTimeout,
        MarkHiddenText,
        Quarantine,
        SignReceipt,
        TraceCall,
        WithoutUndoTool,
    )
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.budget.policy import BudgetNotice, RunBudget
    from evoclaw.governance.client_calls import CancelOnStop
    from evoclaw.governance.flow.policy import Flow
    from evoclaw.governance.flow.settings import FlowFlags
    from evoclaw.governance.forwarded_calls import ForwardedCalls
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.governance.permissions import Permissions, PermittedTools, ToolStatus
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.governance.rules.command_rules import CommandRules
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.writer import Recordable
    from evoclaw.orchestrator.agents.offer_steps import (
        AgentSkills,
        AgentTools,
        WithoutImageTool,
    )
    from evoclaw.orchestrator.fleet.edge_images import FetchImages
    from evoclaw.orchestrator.people.questions import PendingQuestions
    from evoclaw.orchestrator.sessions.steps import (
        ForwardedTools,
        ParentRules,
        RunTools,
        SessionLabels,
    )
    from evoclaw.skills.active import ActiveSkillTools
    from evoclaw.skills.tuned import GenomeSkills
    from evoclaw.tools.sets import FewBuiltInTools

    return PipelineSpec(
        "local",
        offer=(
            PermittedTools, WithoutImageTool, WithoutUndoTool, AgentTools, AgentSkills,
            GenomeSkills, DefaultTimeout, ActiveSkillTools, FewBuiltInTools, FlowFlags, Quarantine,
            RunTools, GenomeTools,
        ),
        before=(
            Stops, ToolStatus, ForwardedTools, RateLimits, Recordable, Autonomy, Permissions,
            CommandRules, NetworkPolicy, ForwardedCalls, Flow, ParentRules, PendingQuestions,
            RunBudget,
        ),
        around=(CancelOnStop, TraceCall, Quarantine, KeepBeforeImages),
        after=(
            SignReceipt, FetchImages, ActiveSkillTools, MarkHiddenText, Quarantine, SessionLabels,
            BudgetNotice,
        ),
    )  # fmt: skip


@cache
def service_pipeline() -> PipelineSpec:
    """Calls of runs in `evoclaw up`: chat, API, channels, workflows."""
    from evoclaw.core.tuned_runs import GenomeTools
    from evoclaw.executors.call_steps import (
        DefaultTimeout,
        MarkHiddenText,
        SignReceipt,
        TraceCall,
        WithoutUndoTool,
    )
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.budget.policy import BudgetNotice, RunBudget
    from evoclaw.governance.flow.policy import Flow
    from evoclaw.governance.flow.settings import FlowFlags
    from evoclaw.governance.forwarded_calls import ForwardedCalls
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.governance.permissions import Permissions, PermittedTools, ToolStatus
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.governance.rules.command_rules import CommandRules
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.writer import Recordable
    from evoclaw.orchestrator.agents.offer_steps import (
        AgentSkills,
        AgentTools,
        WithoutImageTool,
    )
    from evoclaw.orchestrator.fleet.edge_images import FetchImages
    from evoclaw.orchestrator.people.questions import PendingQuestions
    from evoclaw.orchestrator.sessions.steps import (
        ForwardedTools,
        ParentRules,
        RunTools,
        SessionLabels,
    )
    from evoclaw.skills.active import ActiveSkillTools
    from evoclaw.skills.tuned import GenomeSkills
    from evoclaw.tools.sets import FewBuiltInTools

    return PipelineSpec(
        "service",
        offer=(
            PermittedTools, WithoutImageTool, WithoutUndoTool, AgentTools, AgentSkills,
            GenomeSkills, DefaultTimeout, ActiveSkillTools, FewBuiltInTools, FlowFlags, RunTools,
            GenomeTools,
        ),
        before=(
            Stops, ToolStatus, ForwardedTools, RateLimits, Recordable, Autonomy, Permissions,
            CommandRules, NetworkPolicy, ForwardedCalls, Flow, ParentRules, PendingQuestions,
            RunBudget,
        ),
        around=(TraceCall,),
        after=(
            SignReceipt, FetchImages, ActiveSkillTools, MarkHiddenText, SessionLabels, BudgetNotice,
        ),
    )  # fmt: skip


@cache
def edge_pipeline() -> PipelineSpec:
    """Calls that come to an edge: judged again there, whatever the orchestrator decided."""
    from evoclaw.core.tuned_runs import GenomeTools
    from evoclaw.edge.genome import GenomeTimeouts
    from evoclaw.edge.outputs import KeepLargeOutput
    from evoclaw.edge.undo import KeepBeforeImages
    from evoclaw.executors.call_steps import DefaultTimeout, WithoutUndoTool
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.budget.device import DeviceBudget, MeterDevice
    from evoclaw.governance.flow.edge import EdgeFlow
    from evoclaw.governance.flow.settings import FlowFlags
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.governance.permissions import (
        NamedTools,
        Permissions,
        PermittedTools,
        ToolStatus,
    )
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.governance.rules.command_rules import CommandRules
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.writer import Recordable
    from evoclaw.skills.active import ActiveSkillTools
    from evoclaw.skills.tuned import GenomeSkills
    from evoclaw.tools.sets import FewBuiltInTools

    return PipelineSpec(
        "edge",
        offer=(
            PermittedTools, NamedTools, WithoutUndoTool, DefaultTimeout, FlowFlags, GenomeSkills,
            ActiveSkillTools, GenomeTimeouts, FewBuiltInTools, GenomeTools,
        ),
        before=(
            Stops, RateLimits, Recordable, ToolStatus, Autonomy, Permissions, CommandRules,
            NetworkPolicy, EdgeFlow, DeviceBudget,
        ),
        around=(KeepLargeOutput, KeepBeforeImages, MeterDevice),
        after=(ActiveSkillTools,),
    )  # fmt: skip
