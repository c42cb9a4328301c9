"""The HTML page of a one-tap answer: what is asked, and one button that confirms it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

import msgspec

from evoclaw.orchestrator.notifications.answers import AnswerPage

STYLE = """
body{font:18px/1.5 system-ui,sans-serif;max-width:36rem;margin:2rem auto;padding:0 1rem;color:#222}
dt{color:#666;font-size:.8em}dd{margin:0 0 .8rem}pre{font:14px/1.4 ui-monospace,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;background:#f3f3f3;padding:.6rem;border-radius:.3rem}
button{font:inherit;width:100%;padding:.9rem;border:0;border-radius:.5rem;color:#fff;
background:#067a3d}button.deny{background:#b3261e}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#1c1c1c}
dt{color:#999}}
"""
_VERBS = {"once": "Approve", "deny": "Deny"}


def content_security_policy() -> str:
    """The Content-Security-Policy of the page: its own style and its form, nothing else."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )


def render_answer_page(page: AnswerPage, *, asks: bool) -> str:
    """Render the page of a link, or of its answer.

    Args:
        page: What the link answers, or what the answer did.
        asks: Whether to show the button that confirms.
    """
    verb = _VERBS.get(page.decision, "")
    title = f"{verb} this call?" if asks and page.problem is None else "EvoClaw"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
    ]
    if page.text:
        parts.append(f"<p>{escape(page.text)}</p>")
    if page.request is not None:
        parts.append(_call(page))
        if asks:
            parts.append(
                f"<form method=post><button class={escape(page.decision)}>{verb}</button></form>"
            )
    return "".join(parts)


def _call(page: AnswerPage) -> str:
    assert page.request is not None
    request = page.request
    scope = request.scope
    shown = msgspec.json.format(msgspec.json.encode(request.arguments), indent=2).decode()
    rows = {
        "Tool": scope.tool,
        "Machine": scope.machine or "the machine of the orchestrator",
        "Agent": scope.agent,
        "Why it asks": request.reason,
    }
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items() if value
    )
    return f"<dl>{listed}<dt>Arguments</dt><dd><pre>{escape(shown)}</pre></dd></dl>"
