"""The catalogue: models that are known by the digest of their file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.suggestions import did_you_mean
from evoclaw.core.toml import parse_toml

HUB_URL = "https://huggingface.co"
HUB_VARIABLE = "HF_ENDPOINT"
"""The environment variable that names a mirror of the hub, as the hub's own programs read it."""


class ModelEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, known by the digest of its file."""

    name: str
    """The name that users choose it by: `embedded/<name>`."""
    title: str
    about: str
    """What it is good for, in one sentence."""
    parameters: int
    quantisation: str
    sha256: str
    """Of the whole file."""
    size_bytes: int
    """Of the whole file."""
    digest_source: str
    """Where the digest is published: an address, or the package that brings the file."""
    licence: str
    context_tokens: int
    """The context that the model was trained with."""
    cache_bytes_per_token: int
    """The memory that the server needs for each token of the context."""
    vocabulary: int
    template_notes: str
    """How the model's chat template and its tool calls behave."""
    template: str = ""
    """A packaged chat template to use in place of the file's own."""
    max_context_tokens: int = 16_384
    """The longest context that the server is started with."""
    max_output_tokens: int = 2_048
    temperature: float = 0.0
    tools: tuple[str, ...] = ()
    """The built-in tools that it is offered unless others are named, the most useful first; empty:
    all. Small models choose badly among many."""
    is_tested: bool = False
    """Whether the tests and the task benchmark of EvoClaw run with it."""
    hub: str = ""
    """The file on the model hub: repository, revision and file, as `OWNER/NAME@REVISION/FILE`."""
    ollama: str = ""
    """The name of the model in the Ollama library; its file there may be another one."""
    package: str = ""
    """The Python package that contains the file."""

    def url(self, env: Mapping[str, str]) -> str:
        """The address of the file on the hub, or on the mirror that `HF_ENDPOINT` names."""
        if not self.hub:
            return ""
        repository, _, rest = self.hub.partition("@")
        revision, _, file = rest.partition("/")
        hub = env.get(HUB_VARIABLE, "").strip().rstrip("/") or HUB_URL
        return f"{hub}/{repository}/resolve/{revision}/{file}"


class _Catalogue(Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[ModelEntry, ...]


@cache
def catalogue() -> tuple[ModelEntry, ...]:
    """All models of the catalogue, the most capable first."""
    file = resources.files("evoclaw.providers.models").joinpath("catalogue.toml")
    parsed = parse_toml(file.read_text(encoding="utf-8"), "catalogue.toml")
    return msgspec.convert(parsed, _Catalogue).models


def entry_named(name: str) -> ModelEntry | None:
    """The entry of a name; None if there is none."""
    return next((entry for entry in catalogue() if entry.name == name), None)


def entry_of_digest(sha256: str) -> ModelEntry | None:
    """The entry of a digest; None if there is none."""
    return next((entry for entry in catalogue() if entry.sha256 == sha256), None)


def unknown_model(name: str, installed: tuple[str, ...] = ()) -> ConfigError:
    """The error for a name that is neither in the catalogue nor installed."""
    known = [*dict.fromkeys((*installed, *(entry.name for entry in catalogue())))]
    return ConfigError(
        f"unknown model {name!r}: `evoclaw models` lists the known ones, and `evoclaw models pull` "
        f"installs another by its URL or path{did_you_mean(name, known)}"
    )
