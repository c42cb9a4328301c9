"""Changes of a genome: merge patches (RFC 7396), in which null goes back to the configuration.

A patch that is wrong in one place changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import fields, replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import GENOME_RULES, Genome
from evoclaw.core.messages import JSON, ErrorKind, is_object


def merged(
    genome: Genome, patch: Mapping[str, JSON], first: Genome, names: Collection[str]
) -> Genome:
    """A genome with a patch applied; null means the value in `first`.

    Raises `ToolFailure` for a key that is not in `names`, or a value that is not allowed.
    """
    kinds = {field.name: field.type for field in fields(Genome) if field.name in names}
    changes: dict[str, JSON] = {}
    for key, value in patch.items():
        if key not in kinds:
            raise genome_refused(
                f"{key[:80]!r} is not part of the genome; its keys are {', '.join(names)}."
            )
        if value is None:
            changes[key] = getattr(first, key)
            continue
        try:
            plain = msgspec.json.decode(msgspec.json.encode(value))
            if plain is None:
                raise ValueError("not a number")
            if is_object(plain):
                plain = _merge(msgspec.to_builtins(getattr(genome, key)), plain)
            changes[key] = msgspec.convert(plain, kinds[key])
        except (ValueError, TypeError, RecursionError):
            text = f"{key!r} must be {GENOME_RULES[key]}. Nothing was changed."
            raise genome_refused(text) from None
    return replace(genome, **changes)


def genome_refused(text: str) -> ToolFailure:
    """The error for a patch that cannot be applied."""
    return ToolFailure(ErrorKind.INVALID_PARAMS, text)


def check_skills(genome: Genome, known: Collection[str]) -> None:
    """Refuse skills that the agent does not have: to name them would do nothing.

    A new skill must not have the name of one that the agent has.
    """
    if taken := [name for name in genome.new_skills if name in known]:
        raise genome_refused(
            f"This agent has a skill {taken[0]!r} already: change its text with 'skill_texts', or "
            "choose another name. Nothing was changed."
        )
    enabled = [name for name in genome.skills or () if name not in genome.new_skills]
    if unknown := [name for name in (*enabled, *genome.skill_texts) if name not in known]:
        has = ", ".join(sorted(known)) or "none"
        raise genome_refused(
            f"This agent has no skill {', '.join(map(repr, unknown))}; its skills: {has}. "
            "Nothing was changed."
        )


def _merge(old: JSON, patch: dict[str, JSON]) -> dict[str, JSON]:
    new: dict[str, JSON] = dict(old) if is_object(old) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merge(new.get(key), value) if is_object(value) else value
    return new
