"""The options of the commands that need no running service: recordings, settings, moving."""

from __future__ import annotations

import argparse
from collections.abc import Callable

Add = Callable[..., argparse.ArgumentParser]


def add_offline(add: Add, run_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands.

    Args:
        add: Adds one.
        run_options: Adds those by which a run here is bounded and recorded.
    """
    again = add("replay", help="play a recorded run again, offline")
    again.add_argument("file", help="a recording, as `evoclaw run` makes them")
    fork = add("fork", help="begin a recorded run anew from one of its turns")
    _add_fork(fork)
    run_options(fork)
    diff = add("diff", help="compare two recordings, turn by turn")
    for name in ("a", "b"):
        diff.add_argument(name, metavar="FILE", help="a recording")
    init = add("init", help="write a settings file that explains everything")
    init.add_argument("--model", default="", metavar="PROVIDER/MODEL", help="who answers")
    init.add_argument("--force", action="store_true", help="also if there is one; it is kept")
    out = add("export", help="all that is kept, as one file")
    out.add_argument("file", help="where to; it must not be there")
    out.add_argument("--tenant", default="", help="of this one only (default: of everybody)")
    into = add("import", help="what `evoclaw export` wrote, into the store of this machine")
    into.add_argument("file", help="where from")
    into.add_argument("--keep", action="store_true", help="leave what is here as it is")
    for one in (again, diff, init, out, into):
        one.add_argument("--json", action="store_true", help="as JSON")
    _add_channels(add("channels", help="the ways that people have to agents; their accounts"))
    shell = add("completion", help="print what a shell needs to complete our commands")
    shell.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    _add_systemd(add("systemd", help="print a unit file that keeps a process of ours up"))


def _add_channels(channels: argparse.ArgumentParser) -> None:
    what = channels.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="those that are configured (the default)")
    user = what.add_parser("user", help="a person's account at our broker, or another password")
    gone = what.add_parser("remove-user", help="take a person's account away")
    for one in (user, gone):
        one.add_argument("name", help="as in `senders` of the channel")
    for one in (channels, every, user):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_fork(fork: argparse.ArgumentParser) -> None:
    fork.add_argument("recording", nargs="?", help="a recording, as `evoclaw run` makes them")
    fork.add_argument("--run", metavar="ID", help="a run of the service instead")
    fork.add_argument(
        "--at",
        type=int,
        required=True,
        metavar="TURN",
        help="the turn to have anew; what was before it is kept",
    )
    fork.add_argument("--prompt", metavar="FILE", help="other instructions")
    fork.add_argument(
        "--message", metavar="TEXT", help="say this there; at turn 1, instead of the task"
    )
    fork.set_defaults(task=None, on=None, session=None, resume=None, quarantine=False)


def _add_systemd(unit: argparse.ArgumentParser) -> None:
    unit.add_argument(
        "which",
        nargs="?",
        choices=("orchestrator", "edge"),
        default="orchestrator",
        help="which process (default: orchestrator)",
    )
    unit.add_argument("--system", action="store_true", help="for the machine, not for you alone")
    unit.add_argument("--user", default="evoclaw", help="with --system: whose process it is")
    unit.add_argument("--folder", default=".", help="where it works (default: here)")
    unit.add_argument("--config", metavar="FILE", default="agent.toml", help="of an edge")
