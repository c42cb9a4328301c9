import pytest
from genai_prices.data_snapshot import get_snapshot

from evoclaw.core.messages import Finish, Reply, ToolCall
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.profiles import (
    UNKNOWN_LOCAL_PROFILE,
    UNKNOWN_PROFILE,
    known_profile,
    profile_for,
)
from evoclaw.providers.registry import DEFAULT_MODELS
from evoclaw.providers.scripted import calls, says


def test_26_a_reply_with_calls_has_calls() -> None:
    assert Reply("", (ToolCall("1", "bash"),), Finish.CALLS).has_calls is True
    assert calls(("bash", {"command": "date"}), text="one moment").has_calls is True


def test_27_a_reply_without_calls_has_no_calls() -> None:
    assert Reply("The answer is 42.").has_calls is False
    assert says("").has_calls is False


@pytest.mark.parametrize(
    ("name", "style", "images"),
    [
        ("anthropic/claude-sonnet-4-5-20250929", CallStyle.NATIVE, True),
        ("openai/gpt-4o-mini", CallStyle.NATIVE, True),
        ("openai/gpt-4.1", CallStyle.NATIVE, True),
        ("openai/gpt-5-nano", CallStyle.NATIVE, True),
        ("openai/o3-mini", CallStyle.NATIVE, True),
        ("openrouter/meta-llama/llama-3.3-70b-instruct", CallStyle.NATIVE, False),
        ("ollama/llama3.1:8b", CallStyle.NATIVE, False),
        ("ollama/llama2", CallStyle.TEXT, False),
        ("ollama/qwen2.5:7b", CallStyle.NATIVE, False),
        ("ollama/qwen2.5-coder:1.5b", CallStyle.JSON, False),
        ("llamacpp/Qwen2.5-Coder-0.5B-Instruct-Q4_K_M", CallStyle.JSON, False),
        ("ollama/qwen3:8b", CallStyle.NATIVE, False),
        ("ollama/mistral:7b", CallStyle.NATIVE, False),
        ("ollama/gemma3:4b", CallStyle.TEXT, True),
        ("ollama/deepseek-r1:7b", CallStyle.TEXT, False),
        ("deepseek/deepseek-chat", CallStyle.NATIVE, False),
        ("ollama/smollm2", CallStyle.TEXT, False),
        ("ollama/nomic-embed-text", CallStyle.NONE, False),
        ("ollama/hermes3:8b", CallStyle.NATIVE, False),
        ("openai/o1-mini", CallStyle.NONE, False),
    ],
)
def test_well_known_model_families_have_profiles(name: str, style: CallStyle, images: bool) -> None:
    profile = profile_for(name)
    assert (profile.calls, profile.images) == (style, images)
    assert profile.max_output_tokens < profile.context_tokens


# The list is asked for, not imported by name: a type checker would go through 1.5 MB of literals,
# which takes as long as a third of this repository.
def test_context_windows_match_the_price_catalogue() -> None:
    wrong: list[str] = []
    for vendor in get_snapshot().providers:
        if vendor.id not in ("anthropic", "openai", "deepseek"):
            continue
        for model in vendor.models:
            profile = known_profile(model.id)
            odd = any(word in model.id for word in ("realtime", "transcribe", "computer-use"))
            # Never more than the model has; less only where the family's names do not tell.
            if profile and model.context_window and not odd:
                if profile.context_tokens > model.context_window * 1.05:
                    wrong.append(f"{model.id}: {profile.context_tokens} > {model.context_window}")
                elif vendor.id == "anthropic" and profile.context_tokens < model.context_window:
                    wrong.append(f"{model.id}: {profile.context_tokens} < {model.context_window}")
    assert wrong == []


def test_the_default_models_are_in_the_price_catalogue() -> None:
    vendors = get_snapshot().providers
    ids = {(vendor.id, model.id) for vendor in vendors for model in vendor.models}
    assert {tuple(name.split("/", 1)) for name in DEFAULT_MODELS.values()} <= ids


def test_an_unknown_model_gets_a_default_profile_smaller_if_local() -> None:
    assert profile_for("openai/some-new-thing") == UNKNOWN_PROFILE
    assert profile_for("vllm/some-new-thing") == UNKNOWN_LOCAL_PROFILE


def test_a_local_model_gets_a_limited_context_window() -> None:
    assert profile_for("ollama/llama3.1:8b").context_tokens == 32_768
    assert profile_for("groq/llama-3.1-8b-instant").context_tokens == 131_072


def test_a_configured_profile_overrides_the_known_one() -> None:
    mine = Profile(context_tokens=1_000, calls=CallStyle.NONE)
    assert profile_for("openai/gpt-4o", {"openai/gpt-4o": mine}) is mine
    assert profile_for("openai/gpt-4o-mini", {"openai/gpt-4o": mine}) != mine
