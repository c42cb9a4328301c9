"""One table of all tools: how each is used in the place that `support` makes, and what must come
of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from evoclaw.core.canvases import Canvas
from evoclaw.core.messages import JSON
from evoclaw.tools.browser import Browser
from evoclaw.tools.image import Vision
from evoclaw.tools.nodes import Nodes
from evoclaw.tools.question import UserPrompter
from evoclaw.tools.sessions import Sessions
from evoclaw.tools.sets import coding, everything
from evoclaw.tools.skill import SkillReader
from evoclaw.tools.todos import Todo, TodoList
from evoclaw.tools.web import CodeSearcher, Fetcher, WebSearcher

TOOLS = {bound.name: bound for bound in everything()}
REMOTE = tuple(bound.name for bound in coding())
HELD = frozenset(one for bound in TOOLS.values() for one in bound.tool.permissions)
"""Every permission that a tool needs."""
TODO = Todo("water the plants")


class Row(Struct, frozen=True):
    """How one tool is used here, and what must come of it."""

    arguments: dict[str, JSON]
    """`{site}` in a text is where the web server is."""
    says: tuple[str, ...]
    """What the result's text must hold."""
    leaves: frozenset[str] = frozenset()
    """The traces of `Place.traces` that it leaves; it leaves no others."""
    needs: frozenset[type] = frozenset()
    """What it is handed beside files and processes."""
    makes: dict[str, str] = {}
    """What files must hold afterwards, by path."""


def row(
    arguments: dict[str, JSON],
    *says: str,
    leaves: str = "",
    needs: type | None = None,
    makes: dict[str, str] | None = None,
) -> Row:
    """A row, in short."""
    protocols = frozenset[type]() if needs is None else frozenset({needs})
    return Row(arguments, says, frozenset(leaves.split()), protocols, makes or {})


PATCH = (
    "*** Begin Patch\n*** Update File: src/app.py\n-    return 1\n+    return 2\n*** End Patch\n"
)
TABLE: Mapping[str, Row] = {
    "read": row({"path": "notes.txt"}, "buy tea", "call Ann"),
    "write": row(
        {"path": "new/made.txt", "content": "made\n"},
        "made.txt",
        leaves="files",
        makes={"new/made.txt": "made\n"},
    ),
    "edit": row(
        {"path": "notes.txt", "old_string": "buy tea", "new_string": "buy milk"},
        "'notes.txt' at line 1",
        leaves="files",
        makes={"notes.txt": "buy milk\ncall Ann\n"},
    ),
    "glob": row({"pattern": "**/*.py"}, "src/app.py"),
    "grep": row({"pattern": "def ma.n"}, "src/app.py", "def main():"),
    "apply_patch": row(
        {"patch": PATCH},
        "src/app.py",
        leaves="files",
        makes={"src/app.py": "def main():\n    return 2\n"},
    ),
    "bash": row(
        {"command": "echo hello > said; cat said"},
        "hello",
        leaves="files",
        makes={"said": "hello\n"},
    ),
    "git_status": row({}, "main", "notes.txt"),
    "git_diff": row({}, "+call Ann"),
    "git_log": row({}, "Begin"),
    "git_commit": row({"message": "Remember Ann"}, "Remember Ann", "1 file", leaves="files"),
    "git_branch": row({"action": "create", "name": "topic"}, "topic", leaves="files"),
    "webfetch": row({"url": "{site}/page"}, "Tea is ready", leaves="web", needs=Fetcher),
    "websearch": row({"query": "tea"}, "All about tea", leaves="web", needs=WebSearcher),
    "codesearch": row({"query": "brew"}, "brew(water)", leaves="web", needs=CodeSearcher),
    "question": row(
        {"question": "Which tea?", "options": ["green", "black"]},
        "answered: green",
        leaves="person",
        needs=UserPrompter,
    ),
    "todowrite": row(
        {"todos": [{"content": "make tea"}]}, "[ ] make tea", leaves="todos", needs=TodoList
    ),
    "todoread": row({}, f"[ ] {TODO.content}", needs=TodoList),
    "skill": row({"name": "haiku"}, "Count to five.", needs=SkillReader),
    "task": row(
        {"prompt": "do it", "agent": "help"},
        "It is done.",
        "completed",
        leaves="sessions",
        needs=Sessions,
    ),
    "sessions_list": row({}, "earlier: help, ended (completed)", needs=Sessions),
    "sessions_history": row(
        {"session_id": "earlier"}, "user: good morning", "It is done.", needs=Sessions
    ),
    "sessions_send": row(
        {"session_id": "earlier", "message": "and now?"},
        "It is done.",
        leaves="sessions",
        needs=Sessions,
    ),
    "sessions_spawn": row(
        {"task": "do it", "agent": "help"},
        "started with agent 'help'",
        leaves="sessions",
        needs=Sessions,
    ),
    "session_status": row(
        {"session_id": "earlier"}, "earlier: help", "used: 1 turns", needs=Sessions
    ),
    "agents_list": row({}, "help (local; ask with task)", needs=Sessions),
    "browser": row(
        {"action": "open", "url": "{site}/page"}, 'heading "Tea"', leaves="web", needs=Browser
    ),
    "canvas": row(
        {"action": "show", "content": "<b>tea</b>"}, "shown at file:", leaves="canvas", needs=Canvas
    ),
    "nodes": row(
        {"action": "run", "node": "pi", "what": "blink", "params": {"times": 2}},
        "blinked 2 times",
        leaves="device",
        needs=Nodes,
    ),
    "image": row({"path": "dot.png"}, "4 × 3 pixels", needs=Vision),
}


def changed(before: Mapping[str, JSON], after: Mapping[str, JSON]) -> set[str]:
    """The kinds of traces that are not the same."""
    return {kind for kind in before if before[kind] != after[kind]}


def not_made(row: Row, traces: Mapping[str, JSON]) -> list[str]:
    """The files that do not hold what they must."""
    made = traces["files"]
    return [path for path, text in row.makes.items() if made.get(path) != text.encode()]


def lacking(text: str, said: Sequence[str]) -> list[str]:
    """Of what must be said, what is not."""
    return [one for one in said if one not in text]
