"""A TOML parser with limits, for files from untrusted sources."""

from __future__ import annotations

import re
import tomllib

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

MAX_TOML_BYTES = 256 * 1024
MAX_KEY_PARTS = 32
"""Parts of one dotted key. Measured: the parser's memory grows with the square of their number, so
that one line of a small file takes gigabytes."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str, name: str) -> dict[str, JSON]:
    """Parse TOML; raise `ConfigError` for every problem."""
    if len(text.encode(errors="replace")) > MAX_TOML_BYTES:
        raise ConfigError(f"{name} has more than {MAX_TOML_BYTES // 1024} KB")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(f"{name}, line {line}: a key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except ValueError as problem:  # also a number of too many digits
        raise ConfigError(f"{name} is not TOML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
