"""The request and response bodies of OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from evoclaw.core.messages import JSON


class ImageUrl(Struct, frozen=True):
    """An image, always as a data URL."""

    url: str
    """A data URL such as `data:image/png;base64,…`."""
    detail: str | None = None
    """Ignored."""


class ContentPart(Struct, frozen=True):
    """A part of a message's content."""

    type: str
    """`text`, `image_url` or `refusal`."""
    text: str | None = None
    """The text of a `text` part."""
    image_url: ImageUrl | None = None
    """The image of an `image_url` part."""
    refusal: str | None = None
    """The text of a `refusal` part."""


class FunctionCall(Struct, frozen=True):
    """The function and arguments of a tool call."""

    name: str
    """The name of the function."""
    arguments: str = "{}"
    """The arguments, as JSON text."""


class ToolCallParam(Struct, frozen=True):
    """A tool call in an assistant message."""

    id: str
    """The id that the result refers to."""
    function: FunctionCall
    """The function and its arguments."""
    type: str = "function"
    """Always `function`."""


class ChatMessage(Struct, frozen=True):
    """One message of the conversation."""

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: str | list[ContentPart] | None = None
    """The text, or a list of parts."""
    name: str | None = None
    """The name of the author; ignored."""
    tool_calls: list[ToolCallParam] | None = None
    """The tool calls of an assistant message."""
    tool_call_id: str | None = None
    """The call that a `tool` message answers."""


class FunctionParam(Struct, frozen=True):
    """The function of a caller's tool."""

    name: str
    """The name of the tool."""
    description: str | None = None
    """What the tool does, for the model."""
    parameters: dict[str, JSON] | None = None
    """The JSON Schema of its arguments."""
    strict: bool | None = None
    """Ignored; arguments are always checked."""


class ToolParam(Struct, frozen=True):
    """A tool that the caller runs itself."""

    type: str
    """Always `function`."""
    function: FunctionParam | None = None
    """The name, description and parameters of the tool."""


class SchemaParam(Struct, frozen=True, rename={"definition": "schema"}):
    """The JSON Schema that the answer must fit."""

    name: str = ""
    """The name of the schema."""
    definition: dict[str, JSON] | None = None
    """The JSON Schema."""
    description: str | None = None
    """What the answer is, for the model."""
    strict: bool | None = None
    """Ignored; the answer is always checked."""


class ResponseFormat(Struct, frozen=True):
    """The required format of the answer."""

    type: str
    """`text`, `json_object` or `json_schema`."""
    json_schema: SchemaParam | None = None
    """The schema, for `json_schema`."""


class StreamOptions(Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send the token usage in the last event."""


class ChatRequest(Struct, frozen=True):
    """The body of a chat request."""

    model: str
    """The name of the agent; `GET /v1/models` lists them."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    """The conversation; the last message has the role `user` or `tool`."""
    stream: bool | None = None
    """Send the answer as a stream of events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with `stream`."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Overrides the temperature of the agent."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The old name of `max_completion_tokens`."""
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Lowers the limit of tokens in one reply; cannot raise it."""
    n: int | None = None
    """Only 1 is supported."""
    response_format: ResponseFormat | None = None
    """The format that the answer must have."""
    tools: list[ToolParam] | None = None
    """Tools that the caller runs, beside the agent's own."""
    tool_choice: JSON = None
    """`auto`, `none`, `required`, a function that must be called, or `allowed_tools`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in each reply."""
    user: str | None = None
    """Ignored; the token identifies the user."""
    stop: JSON = None
    """A text, or up to four, that end a reply where they would appear."""
    logprobs: bool | None = None
    """Ignored; the `logprobs` of the answer are null."""
    top_logprobs: int | None = None
    """Ignored."""
    logit_bias: JSON = None
    """Not supported."""
    modalities: list[str] | None = None
    """Only `text` is supported."""
    audio: JSON = None
    """Not supported."""
    prediction: JSON = None
    """Not supported."""
    web_search_options: JSON = None
    """Not supported."""
    functions: JSON = None
    """Not supported; use `tools`."""
    function_call: JSON = None
    """Not supported; use `tool_choice`."""


class PromptTokensDetails(Struct, frozen=True):
    """Details of the prompt tokens."""

    cached_tokens: int = 0
    """The tokens that were read from a cache."""


class UsageOut(Struct, frozen=True):
    """Token usage."""

    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Tokens of the replies."""
    total_tokens: int
    """Both together."""
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    """Details of the prompt tokens."""

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
    """The id that the result must refer to."""
    function: FunctionCall
    """The function and its arguments."""
    type: str = "function"
    """Always `function`."""


class MessageOut(Struct, frozen=True):
    """The assistant message of the answer."""

    content: str | None
    """The text of the answer; null if it only has tool calls."""
    role: str = "assistant"
    """Always `assistant`."""
    refusal: None = None
    """Always null."""
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET
    """The calls that the caller has to run."""


class Choice(Struct, frozen=True):
    """The only choice of a completion."""

    message: MessageOut
    """The answer."""
    finish_reason: str
    """Why the answer ended, such as `stop`, `length` or `tool_calls`."""
    index: int = 0
    """Always 0."""
    logprobs: None = None
    """Always null."""


class Completion(Struct, frozen=True):
    """A complete answer."""

    id: str
    """The id of the completion."""
    created: int
    """When it was created, in Unix seconds."""
    model: str
    """The name of the agent."""
    choices: tuple[Choice, ...]
    """One choice."""
    usage: UsageOut
    """The tokens of all replies of the run."""
    object: str = "chat.completion"
    """Always `chat.completion`."""


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
    """The name of the agent."""
    created: int = 0
    """Always 0."""
    owned_by: str = "evoclaw"
    """Always `evoclaw`."""
    object: str = "model"
    """Always `model`."""


class ModelList(Struct, frozen=True):
    """The list of models."""

    data: tuple[Model, ...]
    """The models."""
    object: str = "list"
    """Always `list`."""


class OpenAIError(Struct, frozen=True):
    """An error in OpenAI's format."""

    message: str
    """What failed and what to do, for people."""
    type: str
    """The class of the error, such as `invalid_request_error`."""
    param: str | None = None
    """The parameter that is wrong, if one is."""
    code: str | None = None
    """A short, stable code for programs."""


class OpenAIErrorBody(Struct, frozen=True):
    """The body of an error response in OpenAI's format."""

    error: OpenAIError
    """The error."""
