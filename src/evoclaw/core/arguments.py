"""A strict parser for the JSON arguments of a call: every parser must read the same value."""

from __future__ import annotations

import json
import re

import msgspec

from evoclaw.core.messages import JSON, is_array, is_object

MAX_ARGUMENT_CHARS = 4_000_000
_KEY = re.compile(r'"\s*:')


class BadArguments(ValueError):
    """The text is not an unambiguous JSON object; the message says why."""


def parse_arguments(text: str) -> dict[str, JSON]:
    """Read a JSON object: no duplicate keys, no NaN, no lone surrogates, bounded depth and size."""
    if len(text) > MAX_ARGUMENT_CHARS:
        raise BadArguments(f"longer than {MAX_ARGUMENT_CHARS} characters")
    if not text or text.isspace():
        return {}  # several models send an empty text for a call without arguments
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadArguments(f"not valid JSON ({error})") from None
    except RecursionError:
        raise BadArguments("nested too deeply") from None
    except UnicodeEncodeError:
        raise BadArguments("not valid Unicode") from None
    if not is_object(value):
        raise BadArguments("not a JSON object")
    _reject_duplicate_keys(text, value)
    return value


def _reject_duplicate_keys(text: str, value: dict[str, JSON]) -> None:
    # A colon follows every key: as many colons as keys means that no key is repeated. Strings may
    # contain colons too; only then is the text parsed again by the slow parser.
    if text.count(":") != len(value) and len(_KEY.findall(text)) != _count_keys(value):
        json.loads(text, object_pairs_hook=_unique)


def _count_keys(value: JSON) -> int:
    if is_object(value):
        return len(value) + sum(map(_count_keys, value.values()))
    if is_array(value):
        return sum(map(_count_keys, value))
    return 0


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise BadArguments(f"ambiguous: the key {duplicate!r} appears twice")
    return members
