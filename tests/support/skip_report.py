"""What a run of tests skipped, and what to install so that it is not skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

MAX_REASONS = 8
_INSTALL = re.compile(r"install (?:the package |your system's package )?'?([\w.+-]+[\w+])")
_MISSING = re.compile(r"(?:^|: )(\S+) is not installed")


def package_of(reason: str) -> str:
    """The package that a skip reason asks for, by its words "install NAME"; empty if by none."""
    found = _INSTALL.search(reason) or _MISSING.search(reason)
    return found[1] if found else ""


def skip_lines(reasons: Iterable[str]) -> Iterator[str]:
    """The lines to print, given the reason of each skipped test."""
    packages, others = Counter[str](), Counter[str]()
    for reason in reasons:
        if package := package_of(reason):
            packages[package] += 1
        else:
            others[" ".join(reason.split())] += 1
    if packages:
        names = ", ".join(sorted(packages))
        yield f"{_tests(packages.total())} skipped: install {names} to run them"
    if others:
        yield f"{_tests(others.total())} skipped: this machine or user does not allow them:"
        for reason, count in others.most_common(MAX_REASONS):
            yield f"  {count} x {reason[:150]}"
        if len(others) > MAX_REASONS:
            yield f"  and {len(others) - MAX_REASONS} other reasons: see `pytest -rs`"


def _tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"
