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
_LONG_QUOTE = re.compile(r'"""|\'\'\'')
_ERROR_LINE = re.compile(r"\(at line (\d+)")


def parse_toml(text: str, name: str) -> dict[str, JSON]:
    """Parse TOML; raise `ConfigError` for every problem."""
    if len(text.encode(errors="replace")) > MAX_TOML_BYTES:
        raise ConfigError(f"{name} has more than {MAX_TOML_BYTES // 1024} KB")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        long = f"a key has more than {MAX_KEY_PARTS} parts"
        raise ConfigError(f"{name}, line {line}: {long}", line=line, problem=long)
    try:
        return tomllib.loads(text)
    except ValueError as problem:  # also a number of too many digits
        at = _ERROR_LINE.search(str(problem))
        line = int(at[1]) if at else 0
        raise ConfigError(
            f"{name} is not TOML: {problem}", line=line, problem=f"not TOML: {problem}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None


def open_quote(line: str, quote: str) -> str:
    """The multi-line quote that is open at the end of a line; empty if none is.

    Args:
        line: The line.
        quote: The quote that is open at its start.
    """
    for found in _LONG_QUOTE.findall(line):
        if not quote:
            quote = found
        elif quote == found:
            quote = ""
    return quote
