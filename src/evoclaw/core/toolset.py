"""The tools of an executor, checked on creation: unique names, valid schemas, validators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import is_
from typing import overload

import msgspec

from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.schema import SchemaValidator, compile_schema
from evoclaw.core.tools import Tool

MAX_SHARED_TOOLSETS = 64
"""Toolsets in the cache: most runs of an agent are offered the same tools."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")


class Toolset(Sequence[Tool]):
    """A sequence of tools with lookup by name."""

    __slots__ = ("_by_name", "_size", "_tools", "names")

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        like: Sequence[Tool] = (),
        sources: Iterable[Sequence[Tool]] = (),
        trusted: bool = False,
    ) -> None:
        """Check the tools and create their validators.

        Args:
            tools: The tools.
            like: Another toolset, whose validators are reused.
            sources: More toolsets whose validators are reused.
            trusted: The schemas are our own: compile each when a call first needs it.
        """
        self._tools = tuple(tools)
        self._by_name: dict[str, tuple[Tool, SchemaValidator | None]] = {}
        known: dict[int, SchemaValidator | None] = {}
        for other in (like, *sources):
            if isinstance(other, Toolset):
                known |= other.validators()
        for tool in self._tools:
            if not _NAME.fullmatch(tool.name):
                raise SchemaError(
                    tool.name, "a tool name has only letters, digits and _ . @ -, at most 64"
                )
            if tool.name in self._by_name:
                raise DuplicateTool(tool.name)
            lazy = trusted or id(tool.parameters) in known
            validator = known.get(id(tool.parameters)) if lazy else compile_schema(tool)
            self._by_name[tool.name] = (tool, validator)
        for tool in self._tools:
            for alias in tool.aliases:
                self._by_name.setdefault(alias, self._by_name[tool.name])
        self.names = tuple(tool.name for tool in self._tools)
        self._size = -1

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> Toolset:
        """A sequence as a toolset; a toolset is returned as it is."""
        return tools if isinstance(tools, Toolset) else cls(tools)

    @classmethod
    def shared(cls, tools: Iterable[Tool] = (), sources: Iterable[Sequence[Tool]] = ()) -> Toolset:
        """The toolset of these very tools, built once while they stay the same objects.

        Args:
            tools: The tools.
            sources: More toolsets whose validators are reused.
        """
        return _shared(SameTools(tuple(tools), tuple(sources)))

    @property
    def size(self) -> int:
        """The length of the tools in a request, in characters; computed on first use."""
        if self._size < 0:
            self._size = sum(
                len(tool.description) + len(msgspec.json.encode(tool.parameters))
                for tool in self._tools
            )
        return self._size

    def validators(self) -> dict[int, SchemaValidator | None]:
        """The validators by the identity of their schema; None if not compiled yet."""
        return {id(tool.parameters): validator for tool, validator in self._by_name.values()}

    def find(self, name: str) -> tuple[Tool, SchemaValidator] | None:
        """The tool of this name or alias, and the validator of its arguments."""
        found = self._by_name.get(name)
        if found is None:
            return None
        tool, validator = found
        if validator is None:
            validator = compile_schema(tool)
            self._by_name[name] = (tool, validator)
        return tool, validator

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tool]: ...
    def __getitem__(self, index: int | slice) -> Tool | Sequence[Tool]:
        return self._tools[index]

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)


NO_TOOLS = Toolset()


class SameTools:
    """A key for what is prepared once for some tools: equal if they are the same objects."""

    __slots__ = ("_hash", "sources", "tools")

    def __init__(self, tools: tuple[Tool, ...], sources: tuple[Sequence[Tool], ...] = ()) -> None:
        self.tools, self.sources = tools, sources
        self._hash = hash(tuple(map(id, tools)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SameTools)
            and len(other.tools) == len(self.tools)
            and all(map(is_, other.tools, self.tools))
        )


@lru_cache(maxsize=MAX_SHARED_TOOLSETS)
def _shared(same: SameTools) -> Toolset:
    made = Toolset(same.tools, sources=same.sources)
    same.sources = ()  # The key stays in the cache, and needs only the tools.
    return made
