"""Selects the skills to use when several have the same, or a confusable, name or tool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from evoclaw.skills.generated import NAME
from evoclaw.skills.loading import Problem, Skill
from evoclaw.skills.names import skeleton, version_key

BY_HAND = "EvoClaw has the same tools built in; call the programs of this skill from a shell"


class Candidate(Struct, frozen=True):
    """A valid skill and its rank; of two skills in conflict the lower rank is used."""

    skill: Skill
    rank: tuple[int, ...]


class Settled(Struct, frozen=True):
    """The skills in use, and the reasons why others are not."""

    skills: tuple[Skill, ...] = ()
    """In use, sorted by name."""
    shadowed: tuple[Skill, ...] = ()
    """Older versions: found as `name@version`, their tools are not offered."""
    problems: tuple[Problem, ...] = ()


def settle(candidates: Iterable[Candidate], reserved: Mapping[str, str]) -> Settled:
    """Select the skills to use.

    The highest version of a skill is used. Where two names or tools are the same or confusable,
    the lower rank is used; of equal ranks none is.

    Args:
        candidates: The skills that were loaded.
        reserved: Tool names that no skill may use, and what they belong to.
    """
    remaining = list(candidates)
    rejected: dict[int, Problem] = {}
    for confusable in _groups(remaining, lambda skill: [skeleton(skill.name)]):
        if len({candidate.skill.name for candidate in confusable}) > 1:
            _contest(rejected, confusable, "its name")
    remaining = [candidate for candidate in remaining if id(candidate) not in rejected]
    for same in _groups(remaining, lambda skill: [(skill.name, version_key(skill.version))]):
        _contest(rejected, same, f"the skill {same[0].skill.key}")
    remaining = [candidate for candidate in remaining if id(candidate) not in rejected]
    remaining.sort(key=lambda found: (found.skill.name, version_key(found.skill.version)))
    # The last entry of a name is its highest version.
    highest = {candidate.skill.name: candidate for candidate in remaining}
    shadowed = [found.skill for found in remaining if highest[found.skill.name] is not found]
    _contest_tools(rejected, list(highest.values()), reserved)
    used = [found.skill for found in highest.values() if id(found) not in rejected]
    return Settled(tuple(used), tuple(shadowed), tuple(rejected.values()))


def _contest_tools(
    lost: dict[int, Problem], standing: Sequence[Candidate], reserved: Mapping[str, str]
) -> None:
    taken = {skeleton(name): (name, where) for name, where in reserved.items()}
    for candidate in standing:
        skill = candidate.skill
        if skill.name == NAME and any(skeleton(name) in taken for name in _names(skill)):
            # Not an error: the user installed it for its programs.
            lost[id(candidate)] = Problem(skill.folder, BY_HAND, refused=False)
            continue
        for name in _names(skill):
            if found := taken.get(skeleton(name)):
                like = "is" if found[0] == name else f"looks like {found[0]!r}, which is"
                reason = f"its tool {name!r} {like} {found[1]}; rename the tool in skill.toml"
                lost.setdefault(id(candidate), Problem(skill.folder, reason))
    for same in _groups(standing, _tool_skeletons):
        if len(same) > 1:
            _contest(lost, same, f"its tool {_shared(same)}")


def _names(skill: Skill) -> list[str]:
    return [program.tool.name for program in skill.programs]


def _tool_skeletons(skill: Skill) -> list[Hashable]:
    return [skeleton(name) for name in _names(skill)]


def _shared(same: Sequence[Candidate]) -> str:
    """The tool name that two skills share, as each of them spells it."""
    first, second = (
        {skeleton(program.tool.name): program.tool.name for program in candidate.skill.programs}
        for candidate in same[:2]
    )
    spelled = next((first[key], second[key]) for key in first if key in second)
    return " or ".join(map(repr, dict.fromkeys(spelled)))


def _groups(
    candidates: Iterable[Candidate], keys: Callable[[Skill], Sequence[Hashable]]
) -> Iterator[list[Candidate]]:
    found: defaultdict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        for key in keys(candidate.skill):
            found[key].append(candidate)
    yield from found.values()


def _contest(lost: dict[int, Problem], rivals: Sequence[Candidate], what: str) -> None:
    """Reject all but the candidate of the lowest rank; all of them if several have that rank."""
    lowest = min(rival.rank for rival in rivals)
    first = [rival for rival in rivals if rival.rank == lowest]
    for rival in rivals:
        if len(rivals) == 1 or (first == [rival] and len(first) == 1):
            continue
        others = ", ".join(str(other.skill.folder) for other in rivals if other is not rival)
        reason = (
            f"{what} is the same as in {others}, or looks like it; rename or remove one of them"
        )
        lost.setdefault(id(rival), Problem(rival.skill.folder, reason))
