"""What can be typed after `evoclaw audit`; apart, so that no other command loads the audit."""

from __future__ import annotations

from argparse import ArgumentParser


def add_audit(top: ArgumentParser) -> None:
    """Add the actions and their options."""
    what = top.add_subparsers(dest="action", metavar="ACTION", required=True)
    find = what.add_parser("search", help="find records, here and in the cold tier")
    _add_filters(find)
    find.add_argument("--limit", type=int, default=100, help="the newest so many (default: 100)")
    tail = what.add_parser("tail", help="the newest records of this machine")
    tail.add_argument("-n", type=int, default=20, help="how many (default: 20)")
    tail.add_argument("--follow", action="store_true", help="and those that come, until Ctrl-C")
    check = what.add_parser("verify", help="see whether anything was edited, left out or cut")
    check.add_argument("files", nargs="*", metavar="FILE", help="exports (default: the audit)")
    check.add_argument(
        "--key", action="append", default=[], metavar="PUB", help="who may sign (default: our key)"
    )
    check.add_argument(
        "--at-least", metavar="CHECKPOINT", help="a checkpoint known from elsewhere, or its file"
    )
    check.add_argument("--no-cold", action="store_true", help="leave the cold tier out")
    out = what.add_parser("export", help="take a span elsewhere, with its checkpoints")
    out.add_argument("file", help="where to")
    ship = what.add_parser("ship", help="bring what is new to the cold tier now")
    what.add_parser("key", help="print the public key that checkpoints are signed with")
    for one in (find, out):
        one.add_argument("--since", metavar="WHEN", help="such as 2026-01-31, 2026-01-31T12:00, 2h")
        one.add_argument("--until", metavar="WHEN", help="likewise; that moment is left out")
    for one in (find, tail, check, out, ship):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_filters(find: ArgumentParser) -> None:
    for name, words in (
        ("tool", "of this tool"),
        ("agent", "of this agent"),
        ("user", "for this user"),
        ("tenant", "for this tenant"),
        ("run", "of this run"),
        ("verdict", "with this verdict: allow, deny or ask"),
        ("kind", "of this kind, such as call, approval or run_finished"),
        ("text", "with this text anywhere"),
    ):
        find.add_argument(f"--{name}", default="", help=words)
