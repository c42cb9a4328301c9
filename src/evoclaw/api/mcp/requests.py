"""One request of an MCP client: who sent it, what the client can do, and how its user is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mcp import types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request as HttpRequest

from evoclaw.api.problems import ApiError
from evoclaw.orchestrator.people.access import Caller
from evoclaw.orchestrator.sanitizing import one_line

Context: TypeAlias = ServerRequestContext[Any, Any]
FormSchema: TypeAlias = dict[str, Any]
"""The JSON Schema of a form: an object whose properties are texts, numbers, booleans or choices."""
MAX_CLIENT_NAME_CHARS = 80
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
"""How tasks are negotiated since revision 2026-07-28."""
LOG_LEVELS: tuple[types.LoggingLevel, ...] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip
"""From the least to the most severe."""
OUTPUT_LEVEL: types.LoggingLevel = "info"
"""Of the log messages with the output of a running call."""


@dataclass(slots=True)
class McpRequest:
    """A request of an MCP client."""

    context: Context
    responses: types.InputResponses = field(default_factory=dict[str, types.InputResponse])
    """What the user answered to the forms of an earlier response (since 2026-07-28)."""
    log_level: types.LoggingLevel = OUTPUT_LEVEL
    """The least severe log message that the client wants."""
    forms: dict[str, types.InputRequest] = field(
        default_factory=dict[str, types.InputRequest], init=False
    )
    """Forms that the client must answer before it sends the request again (since 2026-07-28)."""
    _reports: int = field(default=0, init=False)

    @property
    def client(self) -> str:
        """The name that the client gives itself."""
        parameters = self.context.session.client_params
        name = "unknown" if parameters is None else parameters.client_info.name
        return one_line(name, MAX_CLIENT_NAME_CHARS)

    @property
    def caller(self) -> Caller | None:
        """Who sent the request, as the token says; None where no token is needed."""
        http = self.context.request
        found = http.scope.get("auth") if isinstance(http, HttpRequest) else None
        return found if isinstance(found, Caller) else None

    @property
    def session_key(self) -> str:
        """Names the connection of the client; empty over standard input and output."""
        http = self.context.request
        return http.headers.get("mcp-session-id", "") if isinstance(http, HttpRequest) else ""

    @property
    def name_header(self) -> str | None:
        """What the header `Mcp-Name` says that the request is about; None without one."""
        http = self.context.request
        header = http.headers.get(MCP_NAME_HEADER) if isinstance(http, HttpRequest) else None
        return decode_header_value(header)

    @property
    def is_modern(self) -> bool:
        """Whether the client uses revision 2026-07-28 or later, which has no sessions."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def can_elicit(self) -> bool:
        """Whether the client shows forms to its user."""
        declared = self.context.session.client_capabilities
        elicitation = None if declared is None else declared.elicitation
        if elicitation is None:
            return False
        # A client of 2025-06-18 declares an empty object: it can show forms, and nothing else.
        return elicitation.form is not None or elicitation.url is None

    @property
    def has_tasks(self) -> bool:
        """Whether the client declares the extension for tasks (since 2026-07-28)."""
        declared = self.context.session.client_capabilities
        return declared is not None and TASKS_EXTENSION in (declared.extensions or {})

    def require_caller(self, scope: str) -> Caller:
        """The caller; `ApiError` 401 without one, 403 if its token lacks the scope."""
        caller = self.caller
        if caller is None:
            raise ApiError(401, "unauthorized", "This needs a token. See `evoclaw token`.")
        if not caller.may(scope):
            text = (
                f"The token lacks the scope '{scope}'. Ask the administrator for a token with it."
            )
            raise ApiError(403, "forbidden", text, details={"scope": str(scope)})
        return caller

    async def elicit(self, key: str, message: str, schema: FormSchema) -> types.ElicitResult | None:
        """Show a form to the user of the client.

        Returns:
            The answer. None if the client shows no forms, or if it answers with its next request:
            then the form is added to `forms`.
        """
        if not self.can_elicit:
            return None
        if self.is_modern:
            answer = self.responses.get(key)
            if isinstance(answer, types.ElicitResult):
                return answer
            self.forms[key] = form_request(message, schema)
            return None
        try:
            return await self.context.session.elicit_form(message, schema, self.context.request_id)
        except (MCPError, ValidationError):
            return types.ElicitResult(action="cancel")

    async def report(self, text: str) -> None:
        """Send output of a running call: as progress if the client asked for it, else as a log."""
        self._reports += 1
        if self.context.meta is not None and "progress_token" in self.context.meta:
            await self.context.session.report_progress(self._reports, message=text)
        elif not self.is_modern and _at_least(OUTPUT_LEVEL, self.log_level):
            await self.context.session.send_notification(
                types.LoggingMessageNotification(
                    params=types.LoggingMessageNotificationParams(level=OUTPUT_LEVEL, data=text)
                ),
                self.context.request_id,
            )


def form_request(message: str, schema: FormSchema) -> types.ElicitRequest:
    """A form as a request to the client."""
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def _at_least(level: types.LoggingLevel, wanted: types.LoggingLevel) -> bool:
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted)
