"""The options of the commands that ask the running service."""

from __future__ import annotations

import argparse
from collections.abc import Callable

Add = Callable[..., argparse.ArgumentParser]


def add_online(add: Add) -> None:
    """Add the commands."""
    _add_chat(add("chat", help="talk with an agent of the running service"))
    _add_seeing(add)
    _add_logs(add("logs", help="what happens, line by line: of a run, or of all"))
    _add_sessions(add("sessions", help="conversations: see, name, branch, delete"))
    _add_runs(add("runs", help="what the service does and did: see, follow, steer, end"))
    _add_workflows(add("workflows", help="begin workflows, see and end them"))
    _add_token(add("token", help="what programs and people show to be let in"))
    page = add("page", help="a link to the web page that logs you in")
    page.add_argument("--open", action="store_true", help="open it in the browser")


def _add_chat(chat: argparse.ArgumentParser) -> None:
    chat.add_argument("--session", metavar="NAME", help="go on with a conversation, or begin it")
    chat.add_argument("--agent", metavar="NAME", help="who answers in a new one")
    chat.add_argument("--model", metavar="PROVIDER/MODEL", help="instead of the agent's")
    _add_json(chat)


def _add_seeing(add: Add) -> None:
    status = add("status", help="whether the service is well, and what goes on")
    metrics = add("metrics", help="what was counted: runs, calls, tokens, money")
    for one in (status, metrics):
        one.add_argument("--tools", action="store_true", help="figures of each tool")
        _add_json(one)
    metrics.add_argument("--raw", action="store_true", help="as Prometheus reads them")
    metrics.add_argument(
        "--since", default="24h", metavar="TIME", help="with --tools: how far back (default: 24h)"
    )
    metrics.add_argument("--agent", metavar="NAME", help="with --tools: of this agent's runs")


def _add_logs(logs: argparse.ArgumentParser) -> None:
    logs.add_argument("--run", metavar="ID", help="of this run: its records (default: the audit)")
    logs.add_argument("--filter", choices=("tool", "model", "verdict"), help="only such lines")
    logs.add_argument("--follow", action="store_true", help="and what comes, until Ctrl-C")
    logs.add_argument("-n", type=int, default=50, help="how many of the audit (default: 50)")
    _add_json(logs)


def _add_sessions(sessions: argparse.ArgumentParser) -> None:
    what = sessions.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="your conversations (the default)")
    show = what.add_parser("show", help="one of them, with what was said")
    rename = what.add_parser("rename", help="give it another title")
    branch = what.add_parser("branch", help="begin another one from a message of it")
    branch.add_argument("--at", type=int, metavar="N", help="the last message it keeps; see `show`")
    delete = what.add_parser("delete", help="delete it, and its runs, for ever")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for one in (show, rename, branch, delete):
        one.add_argument("id", metavar="ID", help="as `evoclaw sessions` lists it")
    rename.add_argument("title", help="the new title")
    branch.add_argument("--title", default="", help="of the new one")
    for one in (sessions, every):
        one.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")
    for one in (sessions, every, show, branch):
        _add_json(one)


def _add_runs(runs: argparse.ArgumentParser) -> None:
    what = runs.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="the newest (the default)")
    for one in (runs, every):
        one.add_argument("--session", metavar="ID", help="of this conversation")
        one.add_argument(
            "--state", choices=("queued", "running", "waiting", "ended"), help="only such"
        )
        one.add_argument("--limit", type=int, default=20, help="at most so many (default: 20)")
    show = what.add_parser("show", help="one of them: how it stands, and its answer")
    watch = what.add_parser("watch", help="follow it; the exit code says how it ended")
    watch.add_argument("--after", type=int, default=0, metavar="N", help="from record N on")
    cancel = what.add_parser("cancel", help="end it, with all that it began")
    steer = what.add_parser("steer", help="say something to it while it goes on")
    records = what.add_parser("records", help="its recording, as `evoclaw replay` takes it")
    records.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")
    for one in (show, watch, cancel, steer, records):
        one.add_argument("id", metavar="ID", help="as `evoclaw runs` lists it")
    steer.add_argument("message", help="what to say")
    for one in (runs, every, show, watch):
        _add_json(one)


def _add_workflows(workflows: argparse.ArgumentParser) -> None:
    what = workflows.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="those there are, and their runs (the default)")
    start = what.add_parser("start", help="begin one")
    start.add_argument("name", help="as `evoclaw workflows` lists it")
    start.add_argument("input", nargs="*", metavar="NAME=VALUE", help="JSON, or else a text")
    start.add_argument("--key", default="", help="the same key again begins nothing new")
    show = what.add_parser("show", help="one run: its steps, and how they stand")
    cancel = what.add_parser("cancel", help="end it")
    answer = what.add_parser("answer", help="say how a step goes on that waits for a person")
    for one in (show, cancel, answer):
        one.add_argument("id", metavar="ID", help="as `evoclaw workflows` lists it")
    answer.add_argument("step", help="its name, as `show` says it")
    answer.add_argument("decision", choices=("approve", "deny", "retry", "skip", "fail"))
    answer.add_argument("--reason", default="", metavar="TEXT", help="kept with the answer")
    for one in (workflows, every, start, show):
        _add_json(one)


def _add_token(token: argparse.ArgumentParser) -> None:
    what = token.add_subparsers(dest="action", metavar="ACTION")
    new = what.add_parser("new", help="make one; it is shown once")
    new.add_argument(
        "--scope",
        action="append",
        required=True,
        help="what it opens, such as runs:write; `human` may approve; `*` is everything",
    )
    new.add_argument("--name", default="", help="for people: what it is for")
    new.add_argument("--user", default="", help="on whose behalf it asks")
    new.add_argument("--expires", metavar="TIME", help="such as 12h or 30d (default: never)")
    every = what.add_parser("list", help="those there are (the default)")
    revoke = what.add_parser("revoke", help="take one back, at once")
    revoke.add_argument("id", metavar="ID", help="as `evoclaw token list` lists it")
    for one in (token, new, every, revoke):
        one.add_argument("--tenant", default="local", help="whose data it opens (default: local)")
    for one in (token, new, every):
        _add_json(one)


def _add_json(one: argparse.ArgumentParser) -> None:
    one.add_argument("--json", action="store_true", help="as JSON")
