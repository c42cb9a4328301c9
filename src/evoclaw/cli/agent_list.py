"""`evoclaw agents`: the agents that the settings define."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Any

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.edges import edges, is_known_edge
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, one_line
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array
from evoclaw.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent

EDGE_COMMANDS = ("invite", "approve", "revoke", "key")
"""Commands about edges, which are under `evoclaw edges` and were here before."""


def _renamed_commands() -> list[click.Command]:
    """The commands of `evoclaw edges` that were here before: not listed, and with a hint."""
    return [_renamed(copy(edges.commands[name]), name) for name in EDGE_COMMANDS]


def _renamed(command: click.Command, name: str) -> click.Command:
    work = command.callback

    def run(**given: Any) -> Any:
        print_err(f"`evoclaw agents {name}` is now `evoclaw edges {name}`")
        return None if work is None else work(**given)

    command.callback, command.hidden = run, True
    return command


@click.group(cls=CommandGroup, default="list", commands=_renamed_commands())
def agents() -> None:
    """List the agents, and show one."""


@agents.command("list", help="List the agents; the first is the default (the default command)")
@json_option()
def _list(*, as_json: bool) -> int:
    from evoclaw.wiring.agents import defined_agents, missing_agent_skills

    found, missing = defined_agents(os.environ), missing_agent_skills(os.environ)
    if as_json:
        print_out([_row(agent, missing.get(agent.name, ())) for agent in found.values()])
        return exits.OK
    for number, agent in enumerate(found.values()):
        about = agent.description or agent.title or "no description"
        mark = "default" if number == 0 else ""
        model = agent.model or "default model"
        print_out(f"{agent.name:20} {mark:8} {one_line(model):24} {clean(one_line(about))}")
    _print_tool_hints(found.values())
    for name, skills in missing.items():
        print_err(f"agent {name}: unknown skills: {', '.join(skills)}; see `evoclaw skills list`")
    print_err("machines are listed by `evoclaw edges`")
    return exits.OK


@agents.command("show", help="Show the definition of an agent")
@click.argument("name", help="Id of the agent")
@json_option()
@click.pass_context
def _show(context: click.Context, name: str, *, as_json: bool) -> int:
    from evoclaw.wiring.agents import defined_agents, missing_agent_skills

    found = defined_agents(os.environ)
    if name not in found:
        return _show_edge(context, name, found, as_json=as_json)
    row = _row(found[name], missing_agent_skills(os.environ).get(name, ()))
    if as_json:
        print_out(row)
        return exits.OK
    for key, value in row.items():
        if value not in ("", None, [], {}):
            shown = ", ".join(map(str, value)) if is_array(value) else value
            print_out(f"{key:18} {clean(str(shown))}")
    _print_tool_hints([found[name]])
    return exits.OK


def _print_tool_hints(agents: Iterable[Agent]) -> None:
    """Say why an agent gets no tools, and how it gets some."""
    for agent in agents:
        if not agent.capabilities:
            print_err(
                f"agent {agent.name}: no capabilities, so no tools; set `capabilities` in its "
                'definition, such as ["file_read"] or ["*"], within what [orchestrator] allows'
            )


def _show_edge(context: click.Context, name: str, found: dict[str, Agent], *, as_json: bool) -> int:
    """Show an edge, which this command did before; or say which agents there are."""
    if not is_known_edge(name):
        similar = did_you_mean(name, found)
        raise ConfigError(f"unknown agent {name!r}; known agents: {', '.join(found)}{similar}")
    print_err(f"`evoclaw agents show {name}` is now `evoclaw edges show {name}`")
    return context.invoke(edges.commands["show"], agent=name, as_json=as_json)


def _row(agent: Agent, missing: tuple[str, ...]) -> dict[str, JSON]:
    row: dict[str, JSON] = msgspec.to_builtins(agent, order="deterministic")
    row = {"agent": row.pop("name"), **row}
    return {**row, "unknown_skills": list(missing)} if missing else row
