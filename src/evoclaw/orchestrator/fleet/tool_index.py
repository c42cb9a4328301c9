"""Finds edges by tool without looking at all of them: an index of the online edges."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.fleet.members import Member, load

LoadKey: TypeAlias = tuple[int, str]
"""The load and the id of an edge, as they sort."""


@dataclass(eq=False, slots=True)
class _ToolEdges:
    """The online edges that have exactly one tool."""

    tool: Tool
    by_load: list[LoadKey] = field(default_factory=list[LoadKey])


@dataclass(eq=False, slots=True)
class _IndexedEdge:
    """What the index contains of an edge."""

    key: LoadKey
    tools: Toolset
    tool_edges: list[_ToolEdges]


class ToolIndex:
    """The tools of the online edges; the fleet reports each change of an edge."""

    def __init__(self) -> None:
        self._edges: dict[str, _IndexedEdge] = {}
        self._variants: dict[tuple[str, str], list[_ToolEdges]] = {}
        """Tools with the same name and description; their schemas may differ."""
        self._ids: dict[str, list[str]] = {}
        """The sorted ids of the edges that have a tool with a name."""

    def update(self, member: Member) -> None:
        """Index the tools of an edge that changed, or remove those of an offline one."""
        known = self._edges.get(member.agent_id)
        tools = member.tools if member.online else None
        if tools is (None if known is None else known.tools):
            return
        if known is not None:
            self._remove(member.agent_id, known)
        if tools is not None:
            self._add(member, tools)

    def update_load(self, member: Member) -> None:
        """Sort an edge again, if its load changed."""
        known, key = self._edges.get(member.agent_id), load(member)
        if known is None or known.key == key:
            return
        for edges in known.tool_edges:
            del edges.by_load[bisect_left(edges.by_load, known.key)]
            insort(edges.by_load, key)
        known.key = key

    def has(self, agent_id: str, tool: Tool) -> bool:
        """Whether an edge is online and has exactly this tool."""
        known, edges = self._edges.get(agent_id), self._find(tool)
        return known is not None and edges is not None and edges in known.tool_edges

    def least_loaded(self, tool: Tool) -> str:
        """The least loaded edge that has exactly this tool; empty if none has it."""
        edges = self._find(tool)
        return edges.by_load[0][1] if edges is not None else ""

    def first_edges(self, excluded: str) -> list[str]:
        """The edges, by id, that have a tool which no edge before them has.

        `excluded` is an edge that is left out.
        """
        pairs = (ids[:2] for ids in self._ids.values())
        firsts = (next((id_ for id_ in pair if id_ != excluded), "") for pair in pairs)
        return sorted({id_ for id_ in firsts if id_})

    def _find(self, tool: Tool) -> _ToolEdges | None:
        variants = self._variants.get((tool.name, tool.description), ())
        return next((edges for edges in variants if edges.tool == tool), None)

    def _add(self, member: Member, tools: Toolset) -> None:
        indexed = _IndexedEdge(load(member), tools, [])
        for tool in tools:
            edges = self._find(tool)
            if edges is None:
                edges = _ToolEdges(tool)
                self._variants.setdefault((tool.name, tool.description), []).append(edges)
            insort(edges.by_load, indexed.key)
            insort(self._ids.setdefault(tool.name, []), member.agent_id)
            indexed.tool_edges.append(edges)
        self._edges[member.agent_id] = indexed

    def _remove(self, agent_id: str, known: _IndexedEdge) -> None:
        for edges in known.tool_edges:
            tool = edges.tool
            del edges.by_load[bisect_left(edges.by_load, known.key)]
            if not edges.by_load:
                variants = self._variants[tool.name, tool.description]
                variants.remove(edges)
                if not variants:
                    del self._variants[tool.name, tool.description]
            ids = self._ids[tool.name]
            del ids[bisect_left(ids, agent_id)]
            if not ids:
                del self._ids[tool.name]
        del self._edges[agent_id]


class ToolsByName:
    """The different tools that edges have, online or not, by name and alias."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Tool, int]]] = {}
        """Each with the number of edges that have it."""

    def named(self, name: str) -> list[Tool]:
        """The different tools with a name or alias."""
        return [tool for tool, _ in self._found.get(name, ())]

    def replace(self, old: Iterable[Tool], new: Iterable[Tool]) -> None:
        """Update the tools of one edge."""
        for tools, change in ((old, -1), (new, 1)):
            for tool in tools:
                for name in (tool.name, *tool.aliases):
                    self._count(name, tool, change)

    def _count(self, name: str, tool: Tool, change: int) -> None:
        found = self._found.setdefault(name, [])
        number = next((n for n, (known, _) in enumerate(found) if known == tool), len(found))
        count = found[number][1] + change if number < len(found) else change
        found[number : number + 1] = [(tool, count)] if count > 0 else []
        if not found:
            del self._found[name]
