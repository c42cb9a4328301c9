"""The settings of `[agents.evolution]`: what may propose genomes, and what must be shown first."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from evoclaw.core.labels import LOCAL_PRINCIPAL

_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Runs: TypeAlias = Annotated[int, Meta(ge=0, le=100_000)]
_Tenant: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_CaseName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_PublicKey: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{43}$")]


class ProposerName(StrEnum):
    """What suggests changes of a genome."""

    NUMBERS = "numbers"
    """Searches numbers such as the temperature."""
    RULES = "rules"
    """Tries rules of this release as notes, or as lines of the tool prompt; asks no model."""
    DESCRIPTIONS = "descriptions"
    """Rewrites tool descriptions from recorded argument errors."""
    SKILLS = "skills"
    """Drafts the text of a skill from successful runs."""
    GEPA = "gepa"
    """Reflective search with a Pareto pool; needs the package of the extra `evolution`."""


class AgentEvolution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an agent evolves; it does not without proposers."""

    proposers: Annotated[tuple[ProposerName, ...], Meta(max_length=10)] = ()
    """What suggests changes of its genome; none: it does not evolve."""
    model: Annotated[str, Meta(max_length=200)] = ""
    """The model that proposers ask; by default the agent's."""
    max_runs_per_day: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Runs of cases in a day (UTC); the campaign continues the next day."""
    max_cost_per_day: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """US dollars in a day; by default no limit. An unknown price counts as all of it."""
    repeats: Annotated[int, Meta(ge=1, le=100)] = 3
    """Runs of each validation case with each genome."""
    error_rate: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    """The expected share of genomes that are no better, among all that pass validation."""
    min_cases: Annotated[int, Meta(ge=1, le=100_000)] = 10
    """Validation cases that must count."""
    min_coverage: _Share = 0.8
    """The share of calls that the record of a case must answer for it to count."""
    allowed_regressions: Annotated[tuple[_CaseName, ...], Meta(max_length=1_000)] = ()
    """Cases that may get worse, by name."""
    approver_keys: Annotated[tuple[_PublicKey, ...], Meta(max_length=100)] = ()
    """Public keys whose signature approves a candidate as a person does."""
    shadow_runs: _Runs = 5
    """Recent runs that a candidate repeats without executing a call; 0: none."""
    tenants: Annotated[tuple[_Tenant, ...], Meta(min_length=1, max_length=1_000)] = (
        LOCAL_PRINCIPAL.tenant,
    )
    """The tenants whose sessions try candidates, and whose runs count at the canary stage and after
    a promotion. Proposers and the shadow stage read runs of the operator's tenant only."""
    canary_share: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """The share of new sessions that use a candidate."""
    canary_runs: _Runs = 20
    """Runs of those sessions that decide; 0: none."""
    watch_runs: _Runs = 50
    """Runs after a promotion in which a broken bound takes it back; 0: none."""
    max_failure_increase: _Share = 0.1
    """How much more often runs may fail than before, as a share of runs."""
    max_denied_increase: Annotated[float, Meta(ge=0, le=1_000)] = 0.5
    """How many more calls may be denied in a run, on average."""
    max_cost_increase: Annotated[float, Meta(ge=0, le=1_000)] = 0.5
    """How much more a run may cost, on average: 0.5 is one and a half times as much."""
    max_bad_ratings: _Share = 0.2
    """The share of runs that people may rate bad."""

    @property
    def is_on(self) -> bool:
        """Whether the agent evolves."""
        return bool(self.proposers)

    @property
    def runs_of_case(self) -> int:
        """The runs of one validation case: with the current genome, and with the candidate."""
        return 2 * self.repeats
