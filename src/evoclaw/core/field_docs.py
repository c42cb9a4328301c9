"""Reads the docstrings of struct fields: the string literal below a field, which Python drops."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache

from msgspec import Struct


def field_docs(kind: type[Struct]) -> dict[str, str]:
    """The docstrings of the fields of a struct and of its bases, each in one line."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if issubclass(owner, Struct) and owner is not Struct:
            found |= _docs_in_module(owner.__module__).get(owner.__qualname__, {})
    return found


@cache
def _docs_in_module(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of the fields of every class of a module, by the qualified class name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        name: dict(_described_fields(definition)) for name, definition in _classes(tree.body, "")
    }


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _classes(node.body, f"{prefix}{node.name}.")


def _described_fields(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    body = definition.body
    for node, after in zip(body, body[1:], strict=False):
        match node, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
            case _:
                pass
