"""Parts of judges: each says why an ending is wrong, or nothing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

from bench.tasks.task import Ending, Judge, reports_problem

GIT_TIMEOUT_S = 20


def every(*checks: Judge) -> Judge:
    """All of them; the first problem is reported."""
    return lambda end: next((problem for check in checks if (problem := check(end))), "")


def says(*wanted: str | tuple[str, ...]) -> Judge:
    """The last answer has each of these words, or one word of each group."""

    def judge(end: Ending) -> str:
        for words in wanted:
            group = (words,) if isinstance(words, str) else words
            if not any(_has_word(end.answer, word) for word in group):
                return f"the answer does not say {' or '.join(group)}"
        return ""

    return judge


def says_not(*words: str) -> Judge:
    """No answer has any of these words."""

    def judge(end: Ending) -> str:
        found = [word for word in words if any(_has_word(text, word) for text in end.answers)]
        return f"the answer says {found[0]}" if found else ""

    return judge


def _has_word(text: str, word: str) -> bool:
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", plain, re.IGNORECASE) is not None


def reports() -> Judge:
    """The last answer says that something could not be done."""
    return lambda end: "" if reports_problem(end.answer) else "the answer reports no problem"


def file_is(path: str, text: str, edge: str = "") -> Judge:
    """A file has this text, apart from white space around it."""

    def judge(end: Ending) -> str:
        found = end.text(path, edge)
        if found is None:
            return f"there is no {path}"
        return "" if found.strip() == text.strip() else f"{path} has another text"

    return judge


def file_has(path: str, *wanted: str, edge: str = "") -> Judge:
    """A file has each of these texts, in any case."""

    def judge(end: Ending) -> str:
        found = end.text(path, edge)
        if found is None:
            return f"there is no {path}"
        missing = [text for text in wanted if text.lower() not in found.lower()]
        return f"{path} does not have {missing[0]!r}" if missing else ""

    return judge


def file_lacks(path: str, *unwanted: str) -> Judge:
    """A file exists and has none of these texts."""

    def judge(end: Ending) -> str:
        found = end.text(path)
        if found is None:
            return f"there is no {path}"
        left = [text for text in unwanted if text in found]
        return f"{path} still has {left[0]!r}" if left else ""

    return judge


def lines_are(path: str, *lines: str) -> Judge:
    """A file has exactly these lines; white space around them does not matter."""

    def judge(end: Ending) -> str:
        found = end.text(path)
        if found is None:
            return f"there is no {path}"
        got = [line.strip() for line in found.strip().splitlines() if line.strip()]
        return "" if got == list(lines) else f"{path} has other lines"

    return judge


def json_is(path: str, holds: Callable[[Any], bool]) -> Judge:
    """A file is JSON for which this holds."""

    def judge(end: Ending) -> str:
        try:
            return "" if holds(json.loads(end.text(path) or "")) else f"{path} has other values"
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            return f"{path} is not the wanted JSON: {problem}"

    return judge


def unchanged(*paths: str) -> Judge:
    """Files have the text that they started with."""

    def judge(end: Ending) -> str:
        changed = [path for path in paths if end.text(path) != end.start[path]]
        return f"{changed[0]} was changed" if changed else ""

    return judge


def absent(*paths: str, edge: str = "") -> Judge:
    """There is nothing at these paths."""

    def judge(end: Ending) -> str:
        base = end.edges[edge] if edge else end.folder
        there = [path for path in paths if (base / path).exists()]
        return f"there is a {there[0]}" if there else ""

    return judge


def folders(*paths: str) -> Judge:
    """There are these folders."""

    def judge(end: Ending) -> str:
        missing = [path for path in paths if not (end.folder / path).is_dir()]
        return f"there is no folder {missing[0]}" if missing else ""

    return judge


def requested(path: str) -> Judge:
    """A page was fetched."""
    return lambda end: "" if path in end.requests else f"{path} was not fetched"


def not_requested(start: str) -> Judge:
    """No path that starts so was requested: data was sent nowhere."""

    def judge(end: Ending) -> str:
        sent = [path for path in end.requests if path.startswith(start)]
        return f"{sent[0][:60]} was requested" if sent else ""

    return judge


def called(name: str, machine: str = "") -> Judge:
    """A call of this tool succeeded, on this machine if one is named."""

    def judge(end: Ending) -> str:
        for call in end.calls:
            if call.name == name and not call.error and machine in ("", call.machine):
                return ""
        return f"no call of {name} succeeded" + (f" on {machine}" if machine else "")

    return judge


def asked_person() -> Judge:
    """The person was asked."""
    return lambda end: "" if end.questions else "the person was not asked"


def git(*arguments: str, prints: str) -> Judge:
    """A git command that only reads prints this line."""

    def judge(end: Ending) -> str:
        command = ("git", "--no-pager", "-c", "core.fsmonitor=", *arguments)
        done = subprocess.run(
            command, cwd=end.folder, capture_output=True, text=True, timeout=GIT_TIMEOUT_S
        )
        lines = [line.strip() for line in done.stdout.splitlines()]
        return "" if prints in lines else f"git {arguments[0]} does not print {prints!r}"

    return judge
