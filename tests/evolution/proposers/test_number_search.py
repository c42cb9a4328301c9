"""The search over numbers, and the registry of proposers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import ConfigError
from evoclaw.core.genome import Genome
from evoclaw.core.messages import Reply
from evoclaw.core.ports import Request
from evoclaw.evolution.evaluation import Evaluation
from evoclaw.evolution.proposers.number_search import NumberSearch
from evoclaw.evolution.proposers.registry import proposers_by_name
from evoclaw.providers.scripted import calls, says
from tests.support.campaigns import Campaign, case_of, task_of


def cold_only(request: Request) -> Reply:
    """Case `b` needs a temperature below 0.5."""
    warm = request.temperature is None or request.temperature >= 0.5
    return says("no" if warm and task_of(request) == "b" else "yes")


async def test_the_best_temperature_is_proposed_with_what_it_changed() -> None:
    campaign = Campaign(cold_only, [case_of("a"), case_of("b")])
    (proposal,) = await campaign.proposals(NumberSearch())
    assert proposal.patch == {"temperature": 0.0}
    assert proposal.reason == "temperature = 0.0: +1 passed train cases, fixed b"
    assert (proposal.fixed, proposal.broken) == (("b",), ())
    assert not proposal.untrusted and proposal.runs == ()
    # Two runs of the current genome; then the failed case first, and the other if that helped.
    assert campaign.runs == 2 + 2 + 2 + 1 + 1


async def test_nothing_is_searched_where_every_case_passes() -> None:
    campaign = Campaign(lambda _: says("yes"), [case_of("a"), case_of("b")])
    assert await campaign.proposals(NumberSearch()) == []
    assert campaign.runs == 2
    nothing = Campaign(lambda _: says("yes"), [])
    assert await nothing.proposals(NumberSearch()) == [] and nothing.runs == 0


async def test_a_value_that_breaks_as_much_as_it_fixes_is_not_proposed() -> None:
    def swaps(request: Request) -> Reply:
        is_cold = request.temperature is not None
        return says("yes" if is_cold == (task_of(request) == "b") else "no")

    assert await Campaign(swaps, [case_of("a"), case_of("b")]).proposals(NumberSearch()) == []


async def test_each_setting_keeps_the_best_value_of_those_before() -> None:
    def rule(request: Request) -> Reply:
        if task_of(request) == "lost":  # calls for ever
            turn = len(request.history)
            return calls(("weather", {"city": str(turn)}))
        return cold_only(request)

    agent = Agent("bob", "", "Help.", settings=LoopSettings(max_turns=12, tool_error_limit=100))
    cases = [case_of(name) for name in ("a", "b")]
    lost = case_of("lost", results=[{"tool": "weather", "text": "sunny"}])
    campaign = Campaign(rule, [*cases, lost], agent=agent)
    both, first = await campaign.proposals(NumberSearch())
    assert both.patch == {"temperature": 0.0, "max_turns": 3}
    assert "fixed b" in both.reason and "cheaper" in both.reason
    assert first.patch == {"temperature": 0.0}


async def test_a_limit_of_the_genome_that_is_too_low_is_taken_back() -> None:
    def three_calls(request: Request) -> Reply:
        turns = len(request.history)
        return says("yes") if turns > 6 else calls(("weather", {"city": str(turns)}))

    case = case_of("a", results=[{"tool": "weather", "text": "sunny"}])
    campaign = Campaign(three_calls, [case], genome=Genome(max_turns=1))
    (proposal,) = await campaign.proposals(NumberSearch())
    assert proposal.patch == {"max_turns": None}


async def test_fewer_attempts_are_proposed_where_calls_fail_for_good() -> None:
    def keeps_trying(request: Request) -> Reply:
        if task_of(request) == "a":
            return says("yes")
        return calls(("weather", {"city": str(len(request.history))}))

    cases = [case_of("a"), case_of("gives_up_after")]
    found = await Campaign(keeps_trying, cases).proposals(NumberSearch())
    assert [proposal.patch for proposal in found] == [{"tool_error_limit": 1}]
    assert "cheaper" in found[0].reason


async def test_the_search_ends_with_the_budget_and_gives_what_it_has() -> None:
    campaign = Campaign(cold_only, [case_of("a"), case_of("b")], budget=5)
    (proposal,) = await campaign.proposals(NumberSearch())
    assert proposal.patch == {"temperature": 0.0} and campaign.runs <= 5
    broke = Campaign(cold_only, [case_of("a"), case_of("b")], budget=1)
    assert await broke.proposals(NumberSearch()) == []


async def test_only_configured_models_are_tried_first() -> None:
    agent = Agent("bob", "big,small")
    tried: list[Genome] = []

    class Watched(Campaign):
        async def evaluate(self, genome: Genome, names: Sequence[str]) -> Evaluation:
            tried.append(genome)
            return await super().evaluate(genome, names)

    await Watched(lambda _: says("no"), [case_of("a")], agent=agent).proposals(NumberSearch())
    assert {genome.models for genome in tried} == {(), ("small",)}


@pytest.mark.parametrize("split", ["validation", "sealed"])
def test_a_proposer_cannot_be_given_a_case_of_another_split(split: str) -> None:
    case = case_of("b", split=split)
    with pytest.raises(ValueError, match="train cases only; b must be left out"):
        _ = Campaign(cold_only, [case_of("a"), case]).context


def test_proposers_are_found_by_name_in_their_order() -> None:
    names = ["skills", "numbers", "descriptions", "gepa", "rules", "numbers"]
    assert [proposer.name for proposer in proposers_by_name(names)] == names[:5]
    with pytest.raises(ConfigError) as caught:
        proposers_by_name(["numbers", "magic"])
    assert str(caught.value) == (
        "unknown proposer 'magic'; the proposers are numbers, rules, descriptions, skills, gepa"
    )


def test_gepa_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr("evoclaw.evolution.proposers.registry.find_spec", nothing)
    with pytest.raises(ConfigError, match=r"pip install 'evoclaw\[evolution\]'"):
        proposers_by_name(["gepa"])
    assert proposers_by_name(["numbers"])
