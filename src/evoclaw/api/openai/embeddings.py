"""The route of embeddings: passed on to the model that the settings name, if they name one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse
from msgspec import UNSET, Meta, Struct, UnsetType

from evoclaw.api.auth import InjectedDependencies
from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.routes import ERROR_HANDLERS, JSON_TYPE
from evoclaw.orchestrator.people.access import TokenScope

MAX_INPUTS = 2_048
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Tokens: TypeAlias = Annotated[list[int], Meta(min_length=1)]


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """Texts, or lists of tokens, to make embeddings of."""

    input: Any
    """A text, a list of texts, a list of tokens, or a list of such lists."""
    model: str
    """The configured embedding model."""
    encoding_format: Literal["float", "base64"] | UnsetType = UNSET
    """How the numbers are written."""
    dimensions: Annotated[int, Meta(ge=1, le=100_000)] | UnsetType = UNSET
    """How many numbers, if the model can choose."""
    user: str | UnsetType = UNSET
    """Ignored."""


@post(
    "/v1/embeddings",
    scope=TokenScope.AGENTS_INVOKE,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
    status_code=200,
)
async def create_embeddings(
    parts: InjectedDependencies, data: JSONBody[EmbeddingRequest]
) -> ASGIResponse:
    """Make embeddings with the model of `[server] embedding_model`, on a server of your own."""
    configured = parts.settings.embedding_model
    if parts.embed is None:
        raise _no_model(
            "This service has no embedding model: its models are agents. Name one with "
            "`embedding_model` in [server], or send embeddings to a server that has one."
        )
    if data.model not in (configured, configured.partition("/")[2]):
        raise _no_model(f"Unknown embedding model {data.model[:100]!r}; it is {configured!r}.")
    fields = {"encoding_format": data.encoding_format, "dimensions": data.dimensions}
    request = {name: value for name, value in fields.items() if value is not UNSET}
    answer = await parts.embed({**request, "input": _checked(data.input)})
    return ASGIResponse(body=answer, media_type=JSON_TYPE)


def _no_model(text: str) -> BadRequest:
    return BadRequest(text, "model", "model_not_found", status=404)


def _checked(given: Any) -> Any:
    """The input; `BadRequest` if it is none of the four forms, empty or too long."""
    for form in (_Text, list[_Text], _Tokens, list[_Tokens]):
        try:
            found: Any = msgspec.convert(given, form)
        except msgspec.ValidationError:
            continue
        if isinstance(found, str) or 0 < len(found) <= MAX_INPUTS or form is _Tokens:
            return found
    raise BadRequest(
        f"'input' must be a text, a list of at most {MAX_INPUTS} texts, a list of tokens, or a "
        "list of such lists; none may be empty.",
        "input",
    )


EMBEDDING_ROUTES: tuple[HTTPRouteHandler, ...] = (create_embeddings,)
