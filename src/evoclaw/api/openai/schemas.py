"""The request and response bodies of OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from evoclaw.core.messages import JSON


class ImageUrl(Struct, frozen=True):
    """An image, always as a data URL."""

    url: str
    detail: str | None = None


class ContentPart(Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    refusal: str | None = None


class FunctionCall(Struct, frozen=True):
    """The function and arguments of a tool call."""

    name: str
    arguments: str = "{}"


class ToolCallParam(Struct, frozen=True):
    """A tool call in an assistant message."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(Struct, frozen=True):
    """One message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallParam] | None = None
    tool_call_id: str | None = None


class FunctionParam(Struct, frozen=True):
    """The function of a caller's tool."""

    name: str
    description: str | None = None
    parameters: dict[str, JSON] | None = None
    strict: bool | None = None


class ToolParam(Struct, frozen=True):
    """A tool that the caller runs itself."""

    type: str
    function: FunctionParam | None = None


class SchemaParam(Struct, frozen=True, rename={"definition": "schema"}):
    """The JSON Schema that the answer must fit."""

    name: str = ""
    definition: dict[str, JSON] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """The required format of the answer."""

    type: str
    json_schema: SchemaParam | None = None


class StreamOptions(Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatRequest(Struct, frozen=True):
    """The body of a chat request."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[ToolParam] | None = None
    tool_choice: JSON = None
    parallel_tool_calls: bool | None = None
    user: str | None = None
    stop: JSON = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: JSON = None
    modalities: list[str] | None = None
    audio: JSON = None
    prediction: JSON = None
    web_search_options: JSON = None
    functions: JSON = None
    function_call: JSON = None


class PromptTokensDetails(Struct, frozen=True):
    """Details of the prompt tokens."""

    cached_tokens: int = 0


class UsageOut(Struct, frozen=True):
    """Token usage."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()

    def plus(self, other: UsageOut) -> UsageOut:
        """The sum of two usages."""
        cached = self.prompt_tokens_details.cached_tokens
        return UsageOut(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            PromptTokensDetails(cached + other.prompt_tokens_details.cached_tokens),
        )


class ToolCallOut(Struct, frozen=True):
    """A tool call that the caller has to run."""

    id: str
    function: FunctionCall
    type: str = "function"


class MessageOut(Struct, frozen=True):
    """The assistant message of the answer."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET


class Choice(Struct, frozen=True):
    """The only choice of a completion."""

    message: MessageOut
    finish_reason: str
    index: int = 0
    logprobs: None = None


class Completion(Struct, frozen=True):
    """A complete answer."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: UsageOut
    object: str = "chat.completion"


class ToolCallDelta(Struct, frozen=True):
    """A tool call in a stream, always complete."""

    index: int
    id: str
    function: FunctionCall
    type: str = "function"


class Delta(Struct, frozen=True):
    """The new part of the message."""

    role: str | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    """The only choice of a chunk."""

    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class Chunk(Struct, frozen=True):
    """A chunk of a streamed answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: UsageOut | None | UnsetType = UNSET
    object: str = "chat.completion.chunk"


class Model(Struct, frozen=True):
    """An agent as a model."""

    id: str
    created: int = 0
    owned_by: str = "evoclaw"
    object: str = "model"


class ModelList(Struct, frozen=True):
    """The list of models."""

    data: tuple[Model, ...]
    object: str = "list"


class OpenAIError(Struct, frozen=True):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(Struct, frozen=True):
    """The body of an error response in OpenAI's format."""

    error: OpenAIError
