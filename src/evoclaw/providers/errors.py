"""Classify the errors of model servers into the few kinds that callers act on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.messages import JSON, Usage

Kind = ProviderErrorKind

MAX_QUOTED_CHARS = 300
"""Characters of a server's message that an error quotes."""

_RETRYABLE = frozenset({Kind.RATE_LIMITED, Kind.TIMEOUT, Kind.SERVER_ERROR})

_QUOTA_PHRASES = (
    "insufficient_quota",
    "billing_",
    "billing details",
    "credit balance",
    "insufficient credit",
    "insufficient balance",
    "insufficient_balance",
)
_NO_TOOLS_PHRASES = (
    "does not support tools",
    "no endpoints found that support tool use",
    "requires --enable-auto-tool-choice",
)
"""Of Ollama, OpenRouter and vLLM."""
_RATE_LIMIT_PHRASES = ("rate_limit", "rate limit", "too many requests", "resource_exhausted")

# In this order: a server may report a prompt that is too long as a server error.
_ERROR_PHRASES: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (
        Kind.CONTEXT_TOO_LONG,
        (
            "context_length_exceeded",
            "maximum context length",
            "prompt is too long",
            "input is too long",
            "exceeds the available context size",
            "exceed_context_size",
            "exceed context limit",
            "exceeds the context length",
            "exceeds the context window",
            "exceeds the maximum number of tokens",
            "reduce the length of the messages",
            "request_too_large",
        ),
    ),
    (
        Kind.MODEL_NOT_FOUND,
        ("model_not_found", "not_found_error", "try pulling it", "unknown model", "no such model"),
    ),
    (
        Kind.AUTH_ERROR,
        (
            "invalid_api_key",
            "authentication_error",
            "permission_error",
            "incorrect api key",
            "invalid api key",
            "api key not valid",
        ),
    ),
    (Kind.RATE_LIMITED, _RATE_LIMIT_PHRASES),
    (Kind.TIMEOUT, ("timeout_error", "timed out")),
    (Kind.SERVER_ERROR, ("overloaded", "server_error", "api_error")),
)

_KIND_BY_STATUS = {
    401: Kind.AUTH_ERROR,
    403: Kind.AUTH_ERROR,
    404: Kind.MODEL_NOT_FOUND,
    408: Kind.TIMEOUT,
    429: Kind.RATE_LIMITED,
    504: Kind.TIMEOUT,
}

_ADVICE = {
    Kind.QUOTA_EXHAUSTED: "Add credit or raise this account's limit, or use another model.",
    Kind.RATE_LIMITED: "Wait a moment and try again, or use another model.",
    Kind.TIMEOUT: "Try again, allow it more time, or use another model.",
    Kind.SERVER_ERROR: "Check that the server is up and try again, or use another model.",
    Kind.AUTH_ERROR: "Check the API key and its permissions.",
    Kind.MODEL_NOT_FOUND: "Check the model name, the base URL, and that the server has it.",
    Kind.CONTEXT_TOO_LONG: "Shorten the conversation, or use a model with a larger context.",
    Kind.TOOLS_UNSUPPORTED: "Use a model that can call tools.",
    Kind.UNKNOWN: "Check the base URL and the request.",
}


class AttemptFailed(Exception):
    """One attempt to get a reply failed; it may be repeated if `retryable`."""

    def __init__(self, kind: Kind, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.retry_after = kind, message, retry_after

    @property
    def retryable(self) -> bool:
        """Whether a retry may help."""
        return self.kind in _RETRYABLE

    def to_error(self, model: str, usage: Usage) -> ProviderError:
        """The error for the caller: which model, what failed, what to do."""
        text = f"{model}: {self.message.rstrip('. ')}. {_ADVICE[self.kind]}"
        return ProviderError(self.kind, text, retry_after=self.retry_after, usage=usage)


def error_response(status: int, body: bytes, *, retry_after: float | None = None) -> AttemptFailed:
    """Classify an error response; status 0: the error came inside a successful response."""
    message, marks, code = _read(body)
    status = status or code
    kind = _classify(status, f"{marks} {message}".lower())
    number = f" ({status})" if status else ""
    return AttemptFailed(
        kind, f"the server refused{number}: {message or 'no reason given'}", retry_after=retry_after
    )


def unreadable_reply(payload: bytes) -> AttemptFailed:
    """The error for a payload that is not a reply."""
    if is_html(payload):
        return AttemptFailed(Kind.UNKNOWN, "the server sent a web page instead of a reply")
    shown = one_line(payload.decode(errors="replace"))
    return AttemptFailed(Kind.SERVER_ERROR, f"the reply is incomplete or not JSON: {shown!r}")


def is_html(body: bytes) -> bool:
    """Whether a body is HTML."""
    return body[:64].lstrip().startswith(b"<")


def one_line(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """Make untrusted text safe to show: one line, no control characters, limited length."""
    printable = "".join(c if c.isprintable() else " " for c in text[: limit * 4])
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Remove secrets that a server's message repeats."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _classify(status: int, text: str) -> Kind:
    if status == 402 or _contains_any(text, _QUOTA_PHRASES):
        return Kind.QUOTA_EXHAUSTED
    if _contains_any(text, _NO_TOOLS_PHRASES):
        return Kind.TOOLS_UNSUPPORTED
    if status in _KIND_BY_STATUS:
        return _KIND_BY_STATUS[status]
    for kind, signs in _ERROR_PHRASES:
        if _contains_any(text, signs):
            return kind
    if "model" in text and _contains_any(text, ("does not exist", "not found")):
        return Kind.MODEL_NOT_FOUND
    if status == 413:
        return Kind.CONTEXT_TOO_LONG
    return Kind.SERVER_ERROR if status == 0 or status >= 500 else Kind.UNKNOWN


def _contains_any(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)


def _read(body: bytes) -> tuple[str, str, int]:
    """The message of an error body, its codes, and the status it names (0 if none)."""
    try:
        found: JSON = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = "a web page" if is_html(body) else body.decode(errors="replace")
    if isinstance(found, list) and found:
        found = cast("list[JSON]", found)[0]
    if isinstance(found, dict):
        fields = cast("dict[str, JSON]", found)
        found = fields.get("error") or fields.get("detail") or fields
    if not isinstance(found, dict):
        return one_line(str(cast("object", found))), "", 0
    fields = cast("dict[str, JSON]", found)
    marks = " ".join(str(fields.get(key, "")) for key in ("type", "code", "status"))
    code = fields.get("code")
    message = fields.get("message") or fields.get("error") or str(fields)
    return one_line(str(message)), marks, code if isinstance(code, int) and code >= 400 else 0
