"""Texts that people read: OpenAPI descriptions, help texts, and words that are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click

from evoclaw.api import app
from evoclaw.api.openapi import build_openapi
from evoclaw.api.routes.channels import channel_routes, chat_channel_routes
from evoclaw.api.routes.notifications import notification_routes
from evoclaw.cli.main import command_line

SOURCE = Path(__file__).parent.parent / "src" / "evoclaw"
MIN_TEXT_WORDS = 3
"""A literal with fewer words is a name or a key, not a sentence."""
BANNED_PHRASES = {
    r"(?<![Tt]here )\bis no (?!longer\b|one\b)\w+": "is not a …",
    r"\bwhoever\b": "name the role",
    r"\bsomebody\b|\bnobody\b(?! applies)": "name the role",
    r"\b(?:begin|begins|begun|began)\b": "start, started",
    r"\banew\b|\bafresh\b": "again, new",
    r"\bgo(?:es)? on\b": "continue",
    r"\btak(?:e|es|en) up\b|\blet go\b": "resume, release",
    r"\bhow (?:it|one|a session|they) stands?\b|\bstand(?:s)? (?:so|still|twice)\b": "status",
    r"\berrand\b|\bfront desk\b|\bstrand\b|\bcage[ds]?\b|\btending\b": "see the vocabulary",
    r"\bfor ever\b": "permanently",
    r"\bmended\b": "fixed",
    r"\bthe page of evoclaw\b": "the dashboard",
    r"\bnot looked into\b|\bodd(?:ly)?\b": "is not analysed, unusual",
    r"\bby rule\b": "name the setting",
    r"\bput back\b": "restore",
    r"\bget rid of\b": "remove",
}
SCRIPT_TEXT = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments, which are skipped
    r'|(?P<text>"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`)',
    re.DOTALL,
)
"""A comment or a literal of a script of the dashboard, which is plain enough for this."""
NOT_DASHBOARD_TEXTS = ("vendor/", "views/chat/messages.js", "markdown/languages.js")
"""Vendored code, the prompts of the loop that the chat recognises, and keywords of languages."""
NOT_TEXTS = re.compile(
    r"\A\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|ALTER|DROP|BEGIN|DECLARE|PRAGMA)\b"
    r"|\*\*\* Begin Patch|-----BEGIN|RETURN NULL|\bEND\n"
)


def document() -> dict[str, Any]:
    """The OpenAPI document of a service with webhooks and notifiers."""
    nothing = cast("Any", SimpleNamespace(subscriptions=None))
    routes = [
        *app.api_routes(),
        *channel_routes(nothing, ()),
        *chat_channel_routes(()),
        *notification_routes(nothing),
    ]
    return build_openapi(routes)


def described(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Every description in a part of the document, and where it is."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if isinstance(text := found.get("description"), str):
            yield at, text
        for key, inner in found.items():
            yield from described(inner, f"{at}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from described(inner, f"{at}/{number}")


def test_everything_in_the_openapi_document_is_described_in_sentences() -> None:
    found = document()
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, item in found["paths"].items()
        for method, operation in item.items()
    ]
    missing = [name for name, operation in operations if not operation.get("description")]
    missing += [
        f"{name}, parameter {parameter['name']}"
        for name, operation in operations
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    for name, schema in found["components"]["schemas"].items():
        if not schema.get("description") and "$ref" not in schema:
            missing.append(name)
        properties = schema.get("properties", {})
        missing += [f"{name}.{key}" for key, value in properties.items() if not has_text(value)]
    assert not missing, "add a docstring to:\n" + "\n".join(missing)

    unfinished = [f"{at}: {text}" for at, text in described(found) if not text.endswith(".")]
    assert not unfinished, "\n".join(unfinished)
    summaries = [operation["summary"] for _, operation in operations]
    assert all(" " in text and text[0].isupper() and text[-1] != "." for text in summaries)


def has_text(schema: dict[str, Any]) -> bool:
    return bool(schema.get("description"))


def commands(group: click.Command, name: str = "evoclaw") -> Iterator[tuple[str, click.Command]]:
    yield name, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for inner in group.list_commands(context):
            command = group.get_command(context, inner)
            assert command is not None
            yield from commands(command, f"{name} {inner}")


def test_help_texts_start_with_a_capital_and_have_no_full_stop() -> None:
    wrong: list[str] = []
    for name, command in commands(command_line):
        texts = {"": command.get_short_help_str(limit=1_000)}
        for parameter in command.params:
            texts[parameter.name or ""] = getattr(parameter, "help", None) or ""
        for where, text in texts.items():
            if not text or not (text[0].isupper() or text[0] in "`-") or text.endswith("."):
                wrong.append(f"{name} {where}: {text!r}")
    assert not wrong, "\n".join(wrong)


def texts() -> list[tuple[str, str]]:
    """The literals that people or models may read, in files with a banned phrase, and where."""
    found: list[tuple[str, str]] = []
    anything = re.compile("|".join(BANNED_PHRASES))
    for path in sorted(SOURCE.rglob("*.py")):
        if not anything.search(source := path.read_text()):
            continue  # parsing every file would take seconds
        tree = ast.parse(source)
        skipped = docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if (
                    id(node) not in skipped
                    and len(text.split()) >= MIN_TEXT_WORDS
                    and not NOT_TEXTS.search(text)
                ):
                    found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", text))
    return found


def dashboard_texts() -> list[tuple[str, str]]:
    """The literals and the HTML of the dashboard, and where they are."""
    static = SOURCE / "dashboard" / "static"
    found = [(path.name, path.read_text()) for path in sorted(static.glob("*.html"))]
    for path in sorted(static.rglob("*.js")):
        name = path.relative_to(static).as_posix()
        if name.startswith(NOT_DASHBOARD_TEXTS):
            continue
        source = path.read_text()
        for literal in SCRIPT_TEXT.finditer(source):
            if (text := literal["text"]) and len(text.split()) >= MIN_TEXT_WORDS:
                line = source.count("\n", 0, literal.start()) + 1
                found.append((f"{name}:{line}", text))
    return found


def docstrings(tree: ast.Module) -> set[int]:
    """The docstrings of modules, classes, functions and fields, except those that are shown."""
    shown = {
        id(node.body[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(re.search(r"command|group|\btool\(", ast.unparse(m)) for m in node.decorator_list)
    }
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and id(node) not in shown
    }


def test_texts_use_the_words_of_the_field() -> None:
    in_dashboard = dashboard_texts()
    assert len(in_dashboard) > 500, "the literals of the dashboard were not found"
    wrong = [
        f"{where}: write {instead!r} in {text[:200]!r}"
        for where, text in [*texts(), *in_dashboard]
        for phrase, instead in BANNED_PHRASES.items()
        if re.search(phrase, text)
    ]
    assert not wrong, "\n".join(wrong)
