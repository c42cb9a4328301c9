"""The `evoclaw` command. Each subcommand is imported only when it is the one asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.cli import exits
from evoclaw.cli.offline import add_offline
from evoclaw.cli.online import add_online
from evoclaw.cli.oversight import add_oversight
from evoclaw.core.version import VERSION

if TYPE_CHECKING:
    from evoclaw.cli.needs import Wiring

_FILES = {"ping": "fleet", "import": "export"}
"""Where a command's function is, if not in a file of its own name."""


def main(arguments: Sequence[str], wiring: Wiring) -> int:
    """Read the command line, run one command, return its exit code."""
    from evoclaw.cli.render import tell
    from evoclaw.core.errors import EvoClawError

    options = parser().parse_args(arguments)
    try:
        if options.command == "skills":
            from evoclaw.cli.skills import skills

            return skills(options, *wiring.skill_places(os.environ))
        if options.command == "policy":
            from evoclaw.cli.policy import policy

            return policy(options, wiring.judges(Path.cwd(), os.environ))
        module = import_module(f"evoclaw.cli.{_FILES.get(options.command, options.command)}")
        name = "import_" if options.command == "import" else options.command
        return getattr(module, name)(options, wiring)
    except EvoClawError as error:
        tell(f"evoclaw: {error}")
        return exits.MISUSED
    except BrokenPipeError:
        return exits.FAILED
    except KeyboardInterrupt:
        return exits.CANCELLED
    finally:
        _let_go_of_stdout()


def _let_go_of_stdout() -> None:
    """Whoever read our output may have gone: then Python must not try to flush it at the end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Build the command tree."""
    top = argparse.ArgumentParser(
        prog="evoclaw", description="One brain, many hands: a governed tool loop."
    )
    top.add_argument("--version", action="version", version=f"evoclaw {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="do a task here, with local tools"))
    _add_fleet(commands.add_parser)
    _add_tools(commands.add_parser)
    _add_mcp(commands.add_parser("mcp", help="our tools for MCP clients, and theirs for us"))
    add_oversight(commands.add_parser)
    add_online(commands.add_parser)
    add_offline(commands.add_parser, _add_bounds)
    return top


def _add_fleet(add: Callable[..., argparse.ArgumentParser]) -> None:
    up = add("up", help="a broker, an orchestrator and an edge, in one terminal")
    up.add_argument("--host", default="127.0.0.1", help="where the broker listens (default: here)")
    up.add_argument("--port", type=int, default=0, help="its port (default: any, then the same)")
    up.add_argument("--cert", metavar="FILE", help="its TLS certificate")
    up.add_argument("--key", metavar="FILE", help="the certificate's key")
    up.add_argument("--ca-file", metavar="FILE", help="who signed it (default: itself)")
    up.add_argument("--engine", choices=("nats", "mosquitto"), default="nats", help="which broker")
    up.add_argument("--name", default="local", help="of the edge on this machine")
    up.add_argument("--no-edge", action="store_true", help="no edge on this machine")
    up.add_argument("--folder", default=".", help="where that edge works (default: here)")
    up.add_argument("--model", default="", help="that edge's own model, to answer prompts")
    up.add_argument("--api-host", metavar="HOST", help="where the service listens (default: here)")
    up.add_argument("--api-port", metavar="PORT", type=int, help="its port (default: 8433)")
    up.add_argument("--no-api", action="store_true", help="no service: a broker and its fleet only")
    edge = add("edge", help="be one of the hands")
    edge.add_argument("--config", metavar="FILE", help="its agent.toml (default: ./agent.toml)")
    _add_join(edge)
    ping = add("ping", help="ask an edge whether it is there")
    ping.add_argument("agent", help="the edge's id")
    ping.add_argument("--json", action="store_true", help="as JSON")
    _add_agents(add("agents", help="see the fleet; let edges in and out"))


def _add_tools(add: Callable[..., argparse.ArgumentParser]) -> None:
    tools = add("tools", help="show what can be done here, or on an edge")
    tools.add_argument("agent", nargs="?", help="the edge's id (default: this machine)")
    tools.add_argument("--all", action="store_true", help="also what cannot be used here, and why")
    doctor = add("doctor", help="say what works here, and how to get what does not")
    skills = add("skills", help="see, check, make and add skills")
    what = skills.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="the skills there are (the default)")
    show = what.add_parser("show", help="one skill: its tools, its files, its instructions")
    show.add_argument("name", help="the skill's name")
    check = what.add_parser("check", help="look skills through, and say what is wrong with them")
    check.add_argument("name", nargs="?", help="one skill, or a folder (default: all)")
    new = what.add_parser("new", help="begin a skill of your own")
    new.add_argument("name", help="lower-case letters, digits and hyphens")
    new.add_argument("--tool", action="store_true", help="with a program as a tool")
    added = what.add_parser("add", help="copy a skill here and approve it as it is")
    added.add_argument("path", help="the folder")
    for one in (tools, doctor, skills, every, show, check):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_mcp(mcp: argparse.ArgumentParser) -> None:
    what = mcp.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = what.add_parser("serve", help="offer tools to an MCP client, over stdio or HTTP")
    serve.add_argument("--http", action="store_true", help="over HTTP instead of stdin and stdout")
    serve.add_argument("--host", default="127.0.0.1", help="where HTTP listens (default: here)")
    serve.add_argument("--port", type=int, default=8931, help="its port (default: 8931)")
    serve.add_argument(
        "--name", action="append", default=[], help="a host name under which clients reach it"
    )
    serve.add_argument(
        "--token-file", metavar="FILE", help="its token (default: $EVOCLAW_MCP_TOKEN)"
    )
    serve.add_argument("--on", metavar="AGENT", help="tools of this edge; `any`, or `*` for each")
    serve.add_argument("--folder", default=".", help="where local tools work (default: here)")
    serve.add_argument("--tools", metavar="A,B", help="offer these tools only")
    much = serve.add_mutually_exclusive_group()
    much.add_argument("--read-only", action="store_true", help="offer what only reads")
    much.add_argument("--yes", action="store_true", help="run what writes or executes unasked")
    what.add_parser("list", help="what MCP servers offer us, approved and waiting")
    approve = what.add_parser("approve", help="let a server's new or changed tools be used")
    approve.add_argument("server", help="its name in evoclaw.toml")
    approve.add_argument("tool", nargs="*", help="only these (default: all that wait)")
    forget = what.add_parser("forget", help="take every approval of a server back")
    forget.add_argument("server", help="its name in evoclaw.toml")


def _add_join(edge: argparse.ArgumentParser) -> None:
    what = edge.add_subparsers(dest="action", metavar="join")
    join = what.add_parser("join", help="join a fleet, with a token from `evoclaw agents invite`")
    join.add_argument("url", help="a link, or the broker, such as mqtt://192.0.2.7:1883")
    join.add_argument("--token", help="works once; a link has it in it")
    join.add_argument("--ca-file", metavar="FILE", help="who signed the broker's certificate")
    join.add_argument("--config", metavar="FILE", default="agent.toml", help="where to write it")
    join.add_argument(
        "--capabilities",
        metavar="A,B",
        default="file_read",
        help="what tools may do here (default: file_read; `*` is everything)",
    )


def _add_agents(agents: argparse.ArgumentParser) -> None:
    what = agents.add_subparsers(dest="action", metavar="ACTION")
    every = what.add_parser("list", help="who is known and who is there (the default)")
    show = what.add_parser("show", help="one edge and its tools, approved and waiting")
    invite = what.add_parser("invite", help="a token with which a new edge can join, once")
    invite.add_argument("--minutes", type=_positive, default=15, help="how long it works")
    invite.add_argument("--qr", action="store_true", help="its link also as a picture")
    approve = what.add_parser("approve", help="let an edge's new or changed tools be used")
    revoke = what.add_parser("revoke", help="shut an edge out")
    key = what.add_parser("key", help="the public key by which edges know this orchestrator")
    key.add_argument("--file", metavar="FILE", help="of this secret key, not of the data folder's")
    for one in (show, invite, approve, revoke):
        one.add_argument("agent", help="the edge's id")
    for one in (agents, every, show):
        one.add_argument("--json", action="store_true", help="as JSON")


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("task", nargs="?", help="what to do, in plain words; `-` reads it from stdin")
    run.add_argument(
        "--on",
        metavar="AGENT",
        help="work on this edge, or on ssh://USER@HOST/FOLDER; `any` takes whichever has the tool, "
        "`*` offers to ask each",
    )
    run.add_argument("--session", metavar="NAME", help="go on with a conversation, or begin it")
    run.add_argument(
        "--quarantine",
        action="store_true",
        help="keep what outsiders wrote from the model; it asks another one about it",
    )
    _add_bounds(run, resume=True)


def _add_bounds(run: argparse.ArgumentParser, *, resume: bool = False) -> None:
    """How a run here works, what bounds it, where it is recorded."""
    run.add_argument(
        "--model",
        metavar="PROVIDER/MODEL",
        help="default: whichever is at hand; `A,B` falls back on B when A fails",
    )
    run.add_argument("--folder", default=".", help="where to work (default: here)")
    run.add_argument("--tools", metavar="A,B", help="offer these tools only")
    run.add_argument("--turns", type=_positive, help="turns at most (default: 10)")
    run.add_argument("--seconds", type=_positive, help="time at most (default: an hour)")
    run.add_argument("--json", action="store_true", help="records as lines of JSON on stdout")
    how = run.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask before writing or executing")
    how.add_argument("--read-only", action="store_true", help="neither write nor execute")
    run.add_argument(
        "--wait",
        action="store_true",
        help="stop and wait for `evoclaw approvals` if nobody is here",
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument("--record", metavar="FILE", help="where to record the run")
    where.add_argument("--no-record", action="store_true", help="do not record the run")
    if resume:
        where.add_argument("--resume", metavar="FILE", help="go on with a recorded run")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
