"""The proposers by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from evoclaw.core.errors import ConfigError
from evoclaw.evolution.proposals import Proposer


def proposers_by_name(names: Sequence[str]) -> Sequence[Proposer]:
    """The proposers of these names, in their order.

    Raises `ConfigError` for an unknown name, and for `gepa` if its package is not installed.
    """
    known = _makers()
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"unknown proposer {unknown[0][:80]!r}; the proposers are {', '.join(known)}"
        )
    if "gepa" in names and find_spec("gepa") is None:
        raise ConfigError(
            "the proposer 'gepa' needs the package gepa; run: pip install 'evoclaw[evolution]'"
        )
    return [known[name]() for name in dict.fromkeys(names)]


def _makers() -> Mapping[str, Callable[[], Proposer]]:
    from evoclaw.evolution.proposers.description_repair import DescriptionRepair
    from evoclaw.evolution.proposers.gepa_search import GepaSearch
    from evoclaw.evolution.proposers.number_search import NumberSearch
    from evoclaw.evolution.proposers.rule_search import RuleSearch
    from evoclaw.evolution.proposers.skill_distiller import SkillDistiller

    return {
        "numbers": NumberSearch,
        "rules": RuleSearch,
        "descriptions": DescriptionRepair,
        "skills": SkillDistiller,
        "gepa": GepaSearch,
    }
