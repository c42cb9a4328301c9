"""The options of the commands by which people keep agents in check, and see what they did."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from evoclaw.cli.audit_options import add_audit


def add_oversight(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands."""
    _add_approvals(add("approvals", help="see and answer what agents wait for"))
    _add_stop(add("stop", help="the emergency stop: nothing more of it until released"))
    _add_policy(add("policy", help="check rules, explain a verdict, compare two files"))
    _add_budget(add("budget", help="what may be spent, what was, what is left"))
    add_audit(add("audit", help="who did what: find it, prove it, take it elsewhere"))
    _add_receipts(add("receipts", help="what devices signed: see, export, verify"))


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


def _add_budget(budget: argparse.ArgumentParser) -> None:
    budget.add_argument("action", nargs="?", choices=("show",), help="the default")
    budget.add_argument("--all", action="store_true", help="also runs that ended")
    budget.add_argument("--json", action="store_true", help="as JSON")


def _add_receipts(receipts: argparse.ArgumentParser) -> None:
    what = receipts.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="the newest thousand, and what is missing (the default)")
    show = what.add_parser("show", help="one receipt: all that it says")
    show.add_argument("id", help="as r3-9f2c41d0, its hash, or the request it is of")
    export = what.add_parser("export", help="a file that anybody can verify")
    verify = what.add_parser("verify", help="check such a file, as `python -m evoclaw.verify` does")
    for one in (export, verify):
        one.add_argument("file", help="JSON lines")
    verify.add_argument("--key", action="append", metavar="AGENT=KEY", help="a key you trust")
    verify.add_argument("--head", action="append", metavar="AGENT=NUMBER|HASH", help="a known end")
    verify.add_argument("--partial", action="store_true", help="only some of each chain is there")
    for one in (receipts, every, export):
        one.add_argument("--agent", metavar="AGENT", help="only this device's")
    for one in (receipts, every, show):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_policy(policy: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    what = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = what.add_parser("check", help="read rules and run their examples")
    check.add_argument("file", nargs="?", help="default: the configured one, or the shipped rules")
    explain = what.add_parser("explain", help="say how a call would be judged, and why")
    explain.add_argument(
        "call", nargs="+", help="a command; or TOOL NAME=VALUE…; or JSON with tool and arguments"
    )
    diff = what.add_parser("diff", help="judge recorded calls by two files of rules")
    diff.add_argument("old", help="a file of rules, or `shipped`")
    diff.add_argument("new", help="a file of rules, or `shipped`")
    diff.add_argument("--runs", metavar="FOLDER", help="recordings (default: those of your runs)")
    for one in (check, explain, diff):
        one.add_argument("--json", action="store_true", help="as JSON")
