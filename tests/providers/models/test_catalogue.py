"""The catalogue of models: complete, consistent, and each digest with its source."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from evoclaw.providers.models.catalogue import ModelEntry, catalogue, entry_named
from evoclaw.providers.models.local import default_tools
from evoclaw.providers.models.memory import MachineMemory
from evoclaw.providers.models.offer import best_offer, first_turn_seconds
from evoclaw.tools.catalogue import CATALOGUE

GIB = 2**30


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_every_model_has_a_digest_a_source_and_a_way_to_get_it(entry: ModelEntry) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    source = f"the package {entry.package} " if entry.package else "https://"
    assert entry.digest_source.startswith(source)
    assert re.fullmatch(r"[a-z0-9.-]+", entry.name)
    assert entry.licence and entry.template_notes and entry.about and entry.ollama or entry.package
    assert 0 < entry.size_bytes < 4 * 10**9
    assert entry.context_tokens >= entry.max_context_tokens >= 4_096
    assert bool(entry.hub) != bool(entry.package)
    if entry.hub:
        # A revision, not a branch: what a branch names can change.
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}/[\w.-]+\.gguf", entry.hub)
    if entry.template:
        assert resources.files("evoclaw.providers").joinpath(entry.template).is_file()


def test_names_and_digests_are_unique() -> None:
    assert len({entry.name for entry in catalogue()}) == len(catalogue())
    assert len({entry.sha256 for entry in catalogue()}) == len(catalogue())


def test_the_address_of_a_file_is_on_the_hub_or_its_mirror() -> None:
    entry = entry_named("qwen2.5-coder-0.5b")
    assert entry is not None
    file = (
        "/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/ebb2015119c907b064c512bf053e945850b5875f/"
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    )
    assert entry.url({}) == f"https://huggingface.co{file}"
    assert entry.url({"HF_ENDPOINT": "https://mirror.test/"}) == f"https://mirror.test{file}"


def test_small_models_have_few_default_tools_wherever_they_are_served() -> None:
    few = {entry.name: entry.tools for entry in catalogue() if entry.tools}
    shell = ("bash", "read", "edge_call", "skill")
    assert few == {
        "qwen2.5-coder-1.5b": shell,
        "qwen2.5-coder-0.5b": shell,
        "smollm2-135m": ("read",),
    }
    assert default_tools("embedded/smollm2-135m") == ("read",)
    for served in (
        "embedded/qwen2.5-coder-1.5b",
        "embedded/qwen2.5-coder-1.5b-instruct-q4_k_m",
        "llamacpp/Qwen2.5-Coder-1.5B-Instruct",
        "ollama/qwen2.5-coder:1.5b",
    ):
        assert default_tools(served) == shell, served
    for other in ("ollama/qwen2.5-coder:14b", "embedded/of-my-own", "openai/smollm2-135m", "x"):
        assert default_tools(other) == (), other


def test_the_default_tools_of_a_model_exist() -> None:
    assert {name for entry in catalogue() for name in entry.tools} <= set(CATALOGUE)


@pytest.mark.parametrize(
    ("memory", "cores", "offered"),
    [
        (MachineMemory(16 * GIB, 12 * GIB), 4, "qwen2.5-coder-1.5b"),
        (MachineMemory(2 * GIB, GIB), 4, "qwen2.5-coder-0.5b"),
        (MachineMemory(GIB // 2, GIB // 4), 4, None),
    ],
)
def test_the_best_tested_model_that_fits_is_offered(
    tmp_path: object, memory: MachineMemory, cores: int, offered: str | None
) -> None:
    offer = best_offer({"EVOCLAW_HOME": str(tmp_path)}, memory, cores)
    assert (offer.entry.name if offer else None) == offered
    if offer:
        assert offer.command == f"evoclaw models pull {offered}"
        assert "to download" in offer.costs and " of memory, roughly " in offer.costs


def test_more_cores_take_less_time_for_a_first_turn() -> None:
    entry = catalogue()[0]
    assert first_turn_seconds(entry, 8) < first_turn_seconds(entry, 1)
