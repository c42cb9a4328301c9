"""The search over shipped rules."""

from __future__ import annotations

import pytest

from evoclaw.core.genome import Genome
from evoclaw.core.messages import Reply
from evoclaw.core.ports import Request
from evoclaw.core.profile import CallStyle
from evoclaw.core.tools import Tool
from evoclaw.evolution.proposers.genome_texts import GenomeTexts
from evoclaw.evolution.proposers.registry import proposers_by_name
from evoclaw.evolution.proposers.rule_search import RuleSearch, ShippedRule, shipped_rules
from evoclaw.providers.scripted import says
from tests.support.campaigns import Campaign, case_of, prompt_of, task_of

RULES = tuple(ShippedRule(f"Rule {name}.", f"Rule {name} for {{answer}}.") for name in "xyz")


def obeys(needed: dict[str, str], spoiled: dict[str, str]) -> object:
    """A model that needs a rule for a task, or fails a task because of a rule."""

    def rule(request: Request) -> Reply:
        task, prompt = task_of(request), prompt_of(request)
        is_right = needed.get(task, "") in prompt
        if task in spoiled and spoiled[task] in prompt:
            is_right = False
        return says("yes" if is_right else "no")

    return rule


def campaign_of(
    tasks: str, needed: dict[str, str], spoiled: dict[str, str] | None = None, **more: object
) -> Campaign:
    cases = [case_of(name) for name in tasks]
    return Campaign(obeys(needed, spoiled or {}), cases, **more)  # pyright: ignore


async def test_the_rules_that_help_are_proposed_together_and_the_best_one_alone() -> None:
    campaign = campaign_of("abcd", {"a": "Rule x", "b": "Rule x", "c": "Rule z"})
    both, single = await campaign.proposals(RuleSearch(RULES))
    assert both.patch == {"notes": ["Rule x.", "Rule z."]}
    assert (both.fixed, both.broken) == (("a", "b", "c"), ())
    assert both.reason == "Rule x. Rule z. +3 passed train cases, fixed a, b, c"
    assert single.patch == {"notes": ["Rule x."]}
    assert not both.untrusted and campaign.prompts == []


async def test_a_rule_that_breaks_as_much_as_it_fixes_is_dropped_before_all_cases_ran() -> None:
    tasks = [f"ok{n}" for n in range(30)]
    campaign = campaign_of("", {"bad": "Rule x"}, dict.fromkeys(tasks, "Rule x"))
    campaign.cases = [case_of(name) for name in ("bad", *tasks)]
    assert await campaign.proposals(RuleSearch(RULES[:1])) == []
    # All cases without the rule; then the failing one, and a first batch of the others.
    assert campaign.runs == 31 + 1 + 10


async def test_nothing_is_tried_where_every_case_passes() -> None:
    campaign = campaign_of("ab", {})
    assert await campaign.proposals(RuleSearch(RULES)) == []
    assert campaign.runs == 2


async def test_a_model_with_calls_in_text_reads_the_rules_at_the_end_of_its_tool_prompt() -> None:
    campaign = campaign_of("ab", {"a": "Rule y"}, calls=CallStyle.JSON)
    (proposal,) = await campaign.proposals(RuleSearch(RULES))
    shipped = campaign.context.tool_prompt
    assert proposal.patch == {"tool_prompt": f"{shipped}\nRule y for {{answer}}."}


async def test_a_model_with_calls_in_tags_reads_rules_without_the_call_that_answers() -> None:
    campaign = campaign_of("ab", {"a": "Rule y"}, calls=CallStyle.TEXT)
    (proposal,) = await campaign.proposals(RuleSearch(RULES))
    assert proposal.patch == {"tool_prompt": f"{campaign.context.tool_prompt}\nRule y."}


async def test_a_rule_of_the_current_genome_is_not_tried_again() -> None:
    genome = Genome(notes=("Rule x.",))
    campaign = campaign_of("ab", {"a": "Rule y", "b": "Rule x"}, genome=genome)
    (proposal,) = await campaign.proposals(RuleSearch(RULES))
    assert proposal.patch == {"notes": ["Rule x.", "Rule y."]}
    # Two runs of the current genome, two with each of the rules y and z: y fixed `a`, so `b` ran.
    assert campaign.runs == 2 + 2 + 1


async def test_the_search_ends_with_the_budget_and_gives_what_it_has() -> None:
    campaign = campaign_of("ab", {"a": "Rule x"}, budget=4)
    (proposal,) = await campaign.proposals(RuleSearch(RULES))
    assert proposal.patch == {"notes": ["Rule x."]}


async def test_a_rule_about_tools_that_the_agent_does_not_have_is_not_tried() -> None:
    rules = [ShippedRule("Rule x.", tools=("edit", "weather")), *RULES[1:]]
    campaign = campaign_of("ab", {"a": "Rule x"})
    assert await campaign.proposals(RuleSearch(rules)) == []
    campaign = campaign_of("ab", {"a": "Rule x"}, tools=[Tool("edit", "Edits.", {})])
    (proposal,) = await campaign.proposals(RuleSearch(rules))
    assert proposal.patch == {"notes": ["Rule x."]}


async def test_a_rule_may_replace_a_part_of_the_shipped_tool_prompt() -> None:
    rules = [
        ShippedRule("Rule x.", "Rule x with a list:", "Every reply of yours is one call"),
        *RULES[1:],
    ]
    campaign = campaign_of("abc", {"a": "Rule x", "b": "Rule z"}, calls=CallStyle.JSON)
    both, *_ = await campaign.proposals(RuleSearch(rules))
    shipped = campaign.context.tool_prompt
    changed = shipped.replace("Every reply of yours is one call", "Rule x with a list:")
    assert both.patch == {"tool_prompt": f"{changed}\nRule z for {{answer}}."}


@pytest.mark.parametrize("calls", list(CallStyle))
def test_every_shipped_rule_changes_the_text_that_a_model_reads(calls: CallStyle) -> None:
    texts = GenomeTexts(campaign_of("a", {}, calls=calls).context)
    part = "tool_prompt" if "tool_prompt" in texts.now else "notes"
    now = texts.now[part]
    changed = [rule.applied_to(now) for rule in shipped_rules()]
    genomes = [texts.genome({**texts.now, part: text}) for text in changed]
    digests = {genome.digest for genome in genomes if genome is not None}
    assert len(digests) == len(shipped_rules()) and "" not in digests


def test_rules_are_a_proposer_of_the_settings() -> None:
    assert [proposer.name for proposer in proposers_by_name(["rules"])] == ["rules"]
