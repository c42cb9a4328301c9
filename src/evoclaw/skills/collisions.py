"""Skills side by side: one name, one owner. Nobody takes over another one's tools unnoticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from evoclaw.skills.generated import NAME
from evoclaw.skills.loading import Problem, Skill
from evoclaw.skills.names import skeleton, version_key

BY_HAND = "its programs are there to be used by hand; the same tools are built in"


class Candidate(Struct, frozen=True):
    """A sound skill, and its rank: the lower one stays when two are in each other's way."""

    skill: Skill
    rank: tuple[int, ...]


class Settled(Struct, frozen=True):
    """Who is left."""

    skills: tuple[Skill, ...] = ()
    """Those in use, by name."""
    shadowed: tuple[Skill, ...] = ()
    """Older versions: to be had as `name@version`, their tools are not offered."""
    problems: tuple[Problem, ...] = ()


def settle(candidates: Iterable[Candidate], reserved: Mapping[str, str]) -> Settled:
    """Decide which skills are used.

    Of several versions of one skill the highest is. Where names or tools are the same or look
    alike, the one of lower rank stays; among equals nobody does.

    Args:
        candidates: The skills that were loaded.
        reserved: Names of tools that no skill may have, and where they are from.
    """
    everyone = list(candidates)
    lost: dict[int, Problem] = {}
    for alike in _groups(everyone, lambda skill: [skeleton(skill.name)]):
        if len({one.skill.name for one in alike}) > 1:
            _contest(lost, alike, "its name")
    everyone = [one for one in everyone if id(one) not in lost]
    for same in _groups(everyone, lambda skill: [(skill.name, version_key(skill.version))]):
        _contest(lost, same, f"the skill {same[0].skill.key}")
    everyone = [one for one in everyone if id(one) not in lost]
    everyone.sort(key=lambda one: (one.skill.name, version_key(one.skill.version)))
    # The last of a name is its highest version.
    highest = {one.skill.name: one for one in everyone}
    shadowed = [one.skill for one in everyone if highest[one.skill.name] is not one]
    _contest_tools(lost, list(highest.values()), reserved)
    used = [one.skill for one in highest.values() if id(one) not in lost]
    return Settled(tuple(used), tuple(shadowed), tuple(lost.values()))


def _contest_tools(
    lost: dict[int, Problem], standing: Sequence[Candidate], reserved: Mapping[str, str]
) -> None:
    taken = {skeleton(name): (name, where) for name, where in reserved.items()}
    for one in standing:
        if one.skill.name == NAME and any(skeleton(name) in taken for name in _names(one.skill)):
            # Not refused: a person put it there, to have its programs.
            lost[id(one)] = Problem(one.skill.folder, BY_HAND, refused=False)
            continue
        for name in _names(one.skill):
            if found := taken.get(skeleton(name)):
                like = "is" if found[0] == name else f"looks like {found[0]!r}, which is"
                reason = f"its tool {name!r} {like} {found[1]}; rename it"
                lost.setdefault(id(one), Problem(one.skill.folder, reason))
    for same in _groups(standing, _tool_skeletons):
        if len(same) > 1:
            _contest(lost, same, f"its tool {_shared(same)}")


def _names(skill: Skill) -> list[str]:
    return [program.tool.name for program in skill.programs]


def _tool_skeletons(skill: Skill) -> list[Hashable]:
    return [skeleton(name) for name in _names(skill)]


def _shared(same: Sequence[Candidate]) -> str:
    """The tool that two skills have in common, as each of them spells it."""
    first, second = (
        {skeleton(program.tool.name): program.tool.name for program in one.skill.programs}
        for one in same[:2]
    )
    spelled = next((first[key], second[key]) for key in first if key in second)
    return " or ".join(map(repr, dict.fromkeys(spelled)))


def _groups(
    candidates: Iterable[Candidate], keys: Callable[[Skill], Sequence[Hashable]]
) -> Iterator[list[Candidate]]:
    found: defaultdict[Hashable, list[Candidate]] = defaultdict(list)
    for one in candidates:
        for key in keys(one.skill):
            found[key].append(one)
    yield from found.values()


def _contest(lost: dict[int, Problem], rivals: Sequence[Candidate], what: str) -> None:
    """Refuse all but the one of lowest rank; all if several have it."""
    lowest = min(one.rank for one in rivals)
    first = [one for one in rivals if one.rank == lowest]
    for one in rivals:
        if len(rivals) == 1 or (first == [one] and len(first) == 1):
            continue
        others = ", ".join(str(other.skill.folder) for other in rivals if other is not one)
        reason = f"{what} is also that of {others}, or looks like it; rename or remove one of them"
        lost.setdefault(id(one), Problem(one.skill.folder, reason))
