"""Profiles of well-known models, by patterns of their names; each can be overridden.

The context windows are those of `genai-prices`, where it has them: a test compares the two tables,
so that this small one can be used without importing the large one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from evoclaw.core.profile import CallStyle, Profile

_LOCAL_PREFIXES = frozenset({"ollama", "lmstudio", "vllm", "llamacpp"})
_MAX_LOCAL_CONTEXT_TOKENS = 32_768
"""The context assumed for a server on the user's own machine: the full window rarely fits."""

UNKNOWN_PROFILE = Profile()
UNKNOWN_LOCAL_PROFILE = Profile(context_tokens=8_192, max_output_tokens=2_048)

_TEXT, _JSON, _NONE = CallStyle.TEXT, CallStyle.JSON, CallStyle.NONE

# pattern, context window, longest output, images, call style; the first match wins
_Row = tuple[str, int, int, bool, CallStyle]
_ROWS: tuple[_Row, ...] = (
    (r"embed|whisper|tts|rerank|moderation|guard", 8_192, 1_024, False, _NONE),
    (r"claude-(2|v1|instant)", 200_000, 4_096, False, _NONE),
    (r"claude-3-(opus|sonnet|haiku)", 200_000, 4_096, True, CallStyle.NATIVE),
    (r"claude-3[-.]5", 200_000, 8_192, True, CallStyle.NATIVE),
    (r"claude-(opus|sonnet)-4[-.][6-9]", 1_000_000, 32_000, True, CallStyle.NATIVE),
    (r"claude-(3|4|[a-z]+-4)", 200_000, 32_000, True, CallStyle.NATIVE),
    (r"claude", 1_000_000, 32_000, True, CallStyle.NATIVE),
    (r"gpt-3\.5", 16_385, 4_096, False, CallStyle.NATIVE),
    (r"gpt-4o|chatgpt-4o|gpt-4-turbo", 128_000, 16_384, True, CallStyle.NATIVE),
    (r"gpt-4\.1", 1_000_000, 32_768, True, CallStyle.NATIVE),
    (r"gpt-4", 8_192, 4_096, False, CallStyle.NATIVE),
    (r"gpt-oss", 131_072, 32_768, False, CallStyle.NATIVE),
    (r"gpt-5\.3(-chat|$)", 128_000, 16_384, True, CallStyle.NATIVE),
    (r"gpt-5(\.4)?-(mini|nano)|gpt-5(\.[123])?(-|$)", 400_000, 128_000, True, CallStyle.NATIVE),
    (r"gpt-(5\.[4-9]|[6-9])", 1_000_000, 128_000, True, CallStyle.NATIVE),
    (r"o1-(mini|preview)", 128_000, 32_768, False, _NONE),
    (r"o\d(-|$)", 200_000, 100_000, True, CallStyle.NATIVE),
    (r"gemini-(1\.0|pro$)", 32_768, 2_048, False, CallStyle.NATIVE),
    (r"gemini", 1_000_000, 8_192, True, CallStyle.NATIVE),
    (r"smollm", 8_192, 1_024, False, _TEXT),
    (r"llama-?4", 131_072, 8_192, True, CallStyle.NATIVE),
    (r"llama-?3\.2.*(vision|11b|90b)", 131_072, 8_192, True, _TEXT),
    (r"llama-?3\.[123]", 131_072, 8_192, False, CallStyle.NATIVE),
    (r"(code|tiny)llama|llama", 8_192, 2_048, False, _TEXT),
    (r"qwen-?(2\.5)?-?(vl|.*-vl)|qwen3-vl", 32_768, 8_192, True, CallStyle.NATIVE),
    # It writes a code block, whatever its template says, and forgets the request over the result.
    (r"qwen-?2\.5-?coder", 32_768, 8_192, False, _JSON),
    (r"qwen-?2\.5", 32_768, 8_192, False, CallStyle.NATIVE),
    (r"qwen-?3|qwq", 131_072, 8_192, False, CallStyle.NATIVE),
    (r"qwen", 32_768, 4_096, False, _TEXT),
    (r"mi[sx]tral-(7b|8x)|mistral(:|$)|mixtral", 32_768, 4_096, False, CallStyle.NATIVE),
    (r"pixtral|mistral-(small|medium|large)", 128_000, 8_192, True, CallStyle.NATIVE),
    (r"[a-z]+stral", 128_000, 8_192, False, CallStyle.NATIVE),
    (r"deepseek-v4|deepseek-flash", 1_000_000, 8_192, False, CallStyle.NATIVE),
    (r"deepseek-v3\.[12]", 128_000, 8_192, False, CallStyle.NATIVE),
    (r"deepseek-(r1|coder|llm)", 64_000, 8_192, False, _TEXT),
    (r"deepseek", 64_000, 8_192, False, CallStyle.NATIVE),
    (r"functiongemma", 32_768, 2_048, False, CallStyle.NATIVE),
    (r"gemma-?4", 262_144, 8_192, True, CallStyle.NATIVE),
    (r"gemma-?3", 131_072, 8_192, True, _TEXT),
    (r"gemma", 8_192, 2_048, False, _TEXT),
    (r"grok-2", 32_768, 8_192, False, CallStyle.NATIVE),
    (r"grok-3", 131_072, 16_384, False, CallStyle.NATIVE),
    (r"grok", 256_000, 32_768, True, CallStyle.NATIVE),
    (r"kimi|moonshot|glm", 131_072, 8_192, False, CallStyle.NATIVE),
    (r"command-r|command-a|granite|nemotron|hermes-?3", 128_000, 4_096, False, CallStyle.NATIVE),
    (r"hermes", 8_192, 2_048, False, _TEXT),
    (r"phi-?4", 16_384, 4_096, False, _TEXT),
    (r"phi", 4_096, 1_024, False, _TEXT),
)


def known_profile(model: str) -> Profile | None:
    """The profile of a model by its bare name, such as `qwen3:8b`; None if it is not listed."""
    bare = model.lower().rpartition("/")[2]
    for pattern, context, output, images, calls in _ROWS:
        if re.search(rf"(?<![a-z0-9])(?:{pattern})", bare):
            return Profile(context, output, calls, images)
    return None


def profile_for(name: str, overrides: Mapping[str, Profile] | None = None) -> Profile:
    """The profile of `prefix/model`.

    Args:
        name: The model, with its prefix.
        overrides: Profiles by `prefix/model`; they override the table.
    """
    if overrides and name in overrides:
        return overrides[name]
    prefix, _, model = name.partition("/")
    local = prefix in _LOCAL_PREFIXES
    known = known_profile(model)
    if known is None:
        return UNKNOWN_LOCAL_PROFILE if local else UNKNOWN_PROFILE
    if local and known.context_tokens > _MAX_LOCAL_CONTEXT_TOKENS:
        output = min(known.max_output_tokens, _MAX_LOCAL_CONTEXT_TOKENS // 4)
        return Profile(_MAX_LOCAL_CONTEXT_TOKENS, output, known.calls, known.images)
    return known
