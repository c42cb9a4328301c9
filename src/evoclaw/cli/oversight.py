"""The options of the commands by which people keep agents in check: `approvals` and `stop`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_oversight(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both commands."""
    _add_approvals(add("approvals", help="see and answer what agents wait for"))
    _add_stop(add("stop", help="the emergency stop: nothing more of it until released"))


def _add_approvals(approvals: argparse.ArgumentParser) -> None:
    what = approvals.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="what waits, and what holds for a session (the default)")
    show = what.add_parser("show", help="one call: all of it that is kept, and what it would cover")
    approve = what.add_parser("approve", help="let a call run, once")
    approve.add_argument("--session", action="store_true", help="and others like it; see `show`")
    deny = what.add_parser("deny", help="refuse a call, or take back an approval not used up")
    for one in (show, approve, deny):
        one.add_argument("id", metavar="ID", help="as `evoclaw approvals` lists it")
    for one in (approve, deny):
        one.add_argument("--reason", metavar="TEXT", help="told to the model, and kept")
    for one in (approvals, every, show):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_stop(stop: argparse.ArgumentParser) -> None:
    what = stop.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="everything, also what runs now")
    what.add_argument("--agent", metavar="ID", help="one agent or edge, also what runs now")
    what.add_argument("--tool", metavar="NAME", help="calls of one tool")
    what.add_argument("--network", action="store_true", help="calls that can reach the network")
    what.add_argument("--list", action="store_true", help="only say what is stopped")
    stop.add_argument("--release", action="store_true", help="let it go on")
    stop.add_argument("--reason", metavar="TEXT", help="told to the models and to people")
    stop.add_argument("--json", action="store_true", help="with --list: as JSON")
