"""How much memory there is for a model, and how much it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.providers.models.local import ModelNeeds
from evoclaw.providers.models.memory import (
    MIN_CONTEXT_TOKENS,
    MachineMemory,
    format_bytes,
    machine_memory,
)

GIB = 2**30


def machine(folder: Path, *, groups: str = "0::/\n") -> tuple[Path, Path]:
    """The files of a machine with 8 GiB, 6 of them free."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    cgroups.mkdir()
    return proc, cgroups


def test_without_control_groups_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    assert machine_memory(*machine(tmp_path)) == MachineMemory(8 * GIB, 6 * GIB)


def test_a_limit_of_a_parent_control_group_counts_and_its_file_cache_is_free(
    tmp_path: Path,
) -> None:
    proc, cgroups = machine(tmp_path, groups="0::/box/job\n")
    (cgroups / "box" / "job").mkdir(parents=True)
    (cgroups / "box" / "job" / "memory.max").write_text("max\n")
    (cgroups / "box" / "memory.max").write_text(f"{2 * GIB}\n")
    (cgroups / "box" / "memory.current").write_text(f"{GIB + GIB // 2}\n")
    (cgroups / "box" / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\n")
    assert machine_memory(proc, cgroups) == MachineMemory(2 * GIB, GIB + GIB // 2)


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, groups="3:cpu:/\n4:memory:/docker/x\n")
    group = cgroups / "memory" / "docker" / "x"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (group / "memory.usage_in_bytes").write_text("4096\n")
    assert machine_memory(proc, cgroups) == MachineMemory(GIB, GIB - 4096)


def test_the_memory_of_this_machine_is_known() -> None:
    memory = machine_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


NEEDS = ModelNeeds(
    size_bytes=10**9, cache_bytes_per_token=100_000, vocabulary=0, max_context_tokens=16_384
)


def test_the_context_is_halved_until_it_fits_but_stays_usable() -> None:
    assert NEEDS.context_tokens(free_bytes=10 * GIB) == 16_384
    assert NEEDS.context_tokens(free_bytes=NEEDS.memory_bytes(8_192)) == 8_192
    assert NEEDS.context_tokens(free_bytes=1) == MIN_CONTEXT_TOKENS


@pytest.mark.parametrize(
    ("total", "free", "problem"),
    [
        (8 * GIB, 8 * GIB, ""),
        (0, 0, ""),
        (GIB, GIB, "needs 1.5 GB of memory; this machine has 1.1 GB"),
        (8 * GIB, GIB, "needs 1.5 GB of memory; 1.1 GB are free now"),
    ],
)
def test_what_does_not_fit_says_what_is_missing(total: int, free: int, problem: str) -> None:
    assert NEEDS.problem(MachineMemory(total, free)) == problem


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 MB"), (1, "1 MB"), (491_400_064, "491 MB"), (10**10, "10.0 GB")]
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
