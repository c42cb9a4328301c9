"""Selects the skills to use when several have the same, or a confusable, name or tool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from evoclaw.skills.desktop_tools import DESKTOP_TOOLS
from evoclaw.skills.loading import Skill, SkillIssue
from evoclaw.skills.names import skeleton, version_key

BUILT_IN_TOOLS_REASON = (
    "EvoClaw has the same tools built in; call the programs of this skill from a shell"
)


class SkillCandidate(Struct, frozen=True):
    """A valid skill and its rank; of two skills in conflict the lower rank is used."""

    skill: Skill
    rank: tuple[int, ...]
    replaces: bool = False
    """Whether its tools may have reserved names: the owner chose its programs."""


class SkillSelection(Struct, frozen=True):
    """The skills in use, and the reasons why others are not."""

    skills: tuple[Skill, ...] = ()
    """In use, sorted by name."""
    shadowed: tuple[Skill, ...] = ()
    """Older versions: found as `name@version`, their tools are not offered."""
    problems: tuple[SkillIssue, ...] = ()


def select_skills(
    candidates: Iterable[SkillCandidate], reserved: Mapping[str, str]
) -> SkillSelection:
    """Select the skills to use.

    The highest version of a skill is used. Where two names or tools are the same or confusable,
    the lower rank is used; of equal ranks none is.

    Args:
        candidates: The skills that were loaded.
        reserved: Tool names that no skill may use, and what they belong to.
    """
    remaining = list(candidates)
    rejected: dict[int, SkillIssue] = {}
    for confusable in _groups(remaining, lambda skill: [skeleton(skill.name)]):
        if len({candidate.skill.name for candidate in confusable}) > 1:
            _reject_conflicts(rejected, confusable, "its name")
    remaining = [candidate for candidate in remaining if id(candidate) not in rejected]
    for same in _groups(remaining, lambda skill: [(skill.name, version_key(skill.version))]):
        _reject_conflicts(rejected, same, f"the skill {same[0].skill.key}")
    remaining = [candidate for candidate in remaining if id(candidate) not in rejected]
    remaining.sort(key=lambda found: (found.skill.name, version_key(found.skill.version)))
    # The last entry of a name is its highest version.
    highest = {candidate.skill.name: candidate for candidate in remaining}
    shadowed = [found.skill for found in remaining if highest[found.skill.name] is not found]
    _reject_tool_conflicts(rejected, list(highest.values()), reserved)
    used = [found.skill for found in highest.values() if id(found) not in rejected]
    return SkillSelection(tuple(used), tuple(shadowed), tuple(rejected.values()))


def _reject_tool_conflicts(
    rejected: dict[int, SkillIssue],
    candidates: Sequence[SkillCandidate],
    reserved: Mapping[str, str],
) -> None:
    taken = {skeleton(name): (name, where) for name, where in reserved.items()}
    for candidate in candidates:
        skill = candidate.skill
        if candidate.replaces:
            continue
        if skill.name == DESKTOP_TOOLS and any(
            skeleton(name) in taken for name in _tool_names(skill)
        ):
            # Not an error: the user installed it for its programs.
            rejected[id(candidate)] = SkillIssue(skill.folder, BUILT_IN_TOOLS_REASON, refused=False)
            continue
        for name in _tool_names(skill):
            if found := taken.get(skeleton(name)):
                like = "is" if found[0] == name else f"looks like {found[0]!r}, which is"
                reason = f"its tool {name!r} {like} {found[1]}; rename the tool in skill.toml"
                rejected.setdefault(id(candidate), SkillIssue(skill.folder, reason))
    for same in _groups(candidates, _tool_skeletons):
        if len(same) > 1:
            _reject_conflicts(rejected, same, f"its tool {_shared_tool(same)}")


def _tool_names(skill: Skill) -> list[str]:
    return [program.tool.name for program in skill.programs]


def _tool_skeletons(skill: Skill) -> list[Hashable]:
    return [skeleton(name) for name in _tool_names(skill)]


def _shared_tool(same: Sequence[SkillCandidate]) -> str:
    """The tool name that two skills share, as each of them spells it."""
    first, second = (
        {skeleton(program.tool.name): program.tool.name for program in candidate.skill.programs}
        for candidate in same[:2]
    )
    spelled = next((first[key], second[key]) for key in first if key in second)
    return " or ".join(map(repr, dict.fromkeys(spelled)))


def _groups(
    candidates: Iterable[SkillCandidate], keys: Callable[[Skill], Sequence[Hashable]]
) -> Iterator[list[SkillCandidate]]:
    found: defaultdict[Hashable, list[SkillCandidate]] = defaultdict(list)
    for candidate in candidates:
        for key in keys(candidate.skill):
            found[key].append(candidate)
    yield from found.values()


def _reject_conflicts(
    rejected: dict[int, SkillIssue], rivals: Sequence[SkillCandidate], what: str
) -> None:
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
        rejected.setdefault(id(rival), SkillIssue(rival.skill.folder, reason))
