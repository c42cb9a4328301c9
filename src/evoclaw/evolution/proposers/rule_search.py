"""Search over shipped rules: general advice, kept where it passes more train cases.

It asks no model, so it is for agents whose own model is too small to write better texts. The best
rule comes first, then each further one that still adds something.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from evoclaw.core.toml import parse_toml
from evoclaw.evolution.proposals import Proposal, ProposerContext
from evoclaw.evolution.proposers.genome_texts import NOTES, TOOL_PROMPT, GenomeTexts
from evoclaw.evolution.proposers.train_scores import Comparison, TrainScores, best_first

MAX_PROPOSALS = 2
"""The best sets of rules; a single rule is one, too."""


class ShippedRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One piece of advice, for any agent with tools."""

    text: str
    json_calls: str = ""
    """For models that write calls as JSON; empty: the same."""
    replaces: str = ""
    """What it replaces in the tool prompt of these models; empty: it is added."""
    tools: tuple[str, ...] = ()
    """It is about one of these tools; empty: about any."""

    def applied_to(self, text: str) -> str:
        """A text that the model reads, with the rule; the same text if it cannot have it."""
        is_json = "{answer}" in text
        if is_json and self.replaces:
            return text.replace(self.replaces, self.json_calls)
        line = self.json_calls if is_json and self.json_calls else self.text
        return text if line in text else "\n".join(filter(None, (text, line)))


class _RulesFile(Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[ShippedRule, ...]


@cache
def shipped_rules() -> tuple[ShippedRule, ...]:
    """The rules of this release."""
    file = resources.files("evoclaw.evolution.proposers").joinpath("rules.toml")
    parsed = parse_toml(file.read_text(encoding="utf-8"), "rules.toml")
    return msgspec.convert(parsed, _RulesFile).rules


class RuleSearch:
    """Proposes shipped rules that do better on the train cases."""

    name = "rules"

    def __init__(self, rules: Sequence[ShippedRule] | None = None) -> None:
        """`rules` instead of the shipped ones."""
        self._rules = shipped_rules() if rules is None else rules

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The best set first."""
        for proposal in (await best_first(context, self._search))[:MAX_PROPOSALS]:
            yield proposal

    async def _search(
        self, context: ProposerContext, found: list[tuple[Proposal, Comparison]]
    ) -> None:
        scores, texts = TrainScores(context), GenomeTexts(context)
        if not await scores.failed():
            return
        known = {tool.name for tool in context.tools}
        single: list[tuple[ShippedRule, Comparison]] = []
        for rule in self._rules:
            if rule.tools and known.isdisjoint(rule.tools):
                continue
            result = await _try(texts, scores, [rule], 0.0, found)
            if result is not None:
                single.append((rule, result))
        single.sort(key=lambda pair: -pair[1].gain)
        chosen, gain = [rule for rule, _ in single[:1]], single[0][1].gain if single else 0.0
        for rule, _ in single[1:]:
            result = await _try(texts, scores, [*chosen, rule], gain, found)
            if result is not None:
                chosen, gain = [*chosen, rule], result.gain


async def _try(
    texts: GenomeTexts,
    scores: TrainScores,
    rules: Sequence[ShippedRule],
    above: float,
    found: list[tuple[Proposal, Comparison]],
) -> Comparison | None:
    """Add rules to the texts; None if they do not pass more cases than `above`."""
    # The tool prompt ends just before the request, so a small model follows its last lines best.
    part = TOOL_PROMPT if TOOL_PROMPT in texts.now else NOTES
    text = texts.now[part]
    for rule in rules:
        before, text = text, rule.applied_to(text)
        if text == before:
            return None
    changed = {**texts.now, part: text}
    genome = texts.genome(changed)
    result = None if genome is None else await scores.compare(genome, above=above)
    if result is None:
        return None
    reason = f"{' '.join(rule.text for rule in rules)} {result.words()}"
    proposal = Proposal(
        patch=texts.patch(changed), reason=reason, fixed=result.fixed, broken=result.broken
    )
    found.append((proposal, result))
    return result
