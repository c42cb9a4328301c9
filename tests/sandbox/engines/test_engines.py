from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import DetachedEngine, SandboxPolicy, WarmEngine
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines import launcher_program as entry
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.engines.firejail import Firejail
from evoclaw.sandbox.engines.podman import Podman
from evoclaw.sandbox.engines.registry import SandboxSettings, choose_engine, package_engines


def test_sandbox_settings_are_read_from_toml_with_safe_defaults() -> None:
    text = b"""
    engine = "firejail"
    memory = 1073741824
    readable = ["/srv/models"]
    [tools]
    bash = "bubblewrap"
    """
    settings = msgspec.toml.decode(text, type=SandboxSettings)

    bounds = settings.sandbox_policy("/tmp", protected=("/tmp/.bashrc",), tenant="a", trusted=False)

    assert (settings.engine, settings.tools) == ("firejail", {"bash": "bubblewrap"})
    assert (bounds.memory, bounds.readable) == (1 << 30, ("/srv/models",))
    assert (bounds.tenant, bounds.trusted, bounds.proxy) == ("a", False, "")
    assert SandboxSettings().engine == "auto"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (SandboxSettings(engine="docker"), "unknown sandbox engine 'docker'"),
        (SandboxSettings(tools={"bash": "nope"}), "unknown sandbox engine 'nope'"),
        (SandboxSettings(memory=0), "sandbox.memory must be at least 1"),
        (SandboxSettings(writable=("here",)), "absolute paths, not 'here'"),
        (SandboxSettings(devices=("/dev/nowhere",)), "'/dev/nowhere' cannot be used in a sandbox"),
        (SandboxSettings(devices=("/etc/hostname",)), "name device nodes"),
        (SandboxSettings(devices=("/dev/kmsg",)), "no disk or memory"),
        (
            SandboxSettings(preset="arduino"),
            "unknown sandbox preset 'arduino'",
        ),
        (SandboxSettings(preset="raspberry-pi", engine="firejail"), "firejail cannot show single"),
    ],
)
def test_invalid_sandbox_settings_are_refused(settings: SandboxSettings, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        settings.sandbox_policy("/tmp")


def test_the_preset_of_a_raspberry_pi_opens_sys_and_the_devices_that_exist() -> None:
    policy = SandboxSettings(preset="raspberry-pi").sandbox_policy("/tmp")

    assert policy.readable == ("/sys",)
    assert all(Path(path).exists() for path in policy.devices)
    assert SandboxSettings(devices=("/dev/null",)).sandbox_policy("/tmp").devices == ("/dev/null",)


@pytest.mark.parametrize("place", ["/", "/etc", "/usr/share", "/proc/self"])
def test_a_system_folder_as_workspace_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="Choose a separate folder"):
        SandboxSettings().sandbox_policy(place)


def test_engine_registry_names_match_the_engine_names() -> None:
    found = package_engines()

    assert {name: engine.name for name, engine in found.items()} == {name: name for name in found}
    assert isinstance(found["bubblewrap"], WarmEngine) and not isinstance(
        found["firejail"], WarmEngine
    )
    assert isinstance(found["podman"], DetachedEngine)


def test_parent_folders_of_protected_paths_are_pinned(tmp_path: Path) -> None:
    (tmp_path / "a/.git/hooks").mkdir(parents=True)
    bounds = SandboxPolicy(
        str(tmp_path), protected=(f"{tmp_path}/a/.git/hooks", f"{tmp_path}/gone")
    )

    pins = [
        (path, write)
        for path, write in system.pinned_paths(bounds)
        if "hooks" in path or "/a" in path
    ]

    assert pins == [
        (f"{tmp_path}/a", True),
        (f"{tmp_path}/a/.git", True),
        (f"{tmp_path}/a/.git/hooks", False),
    ]


def test_firejail_makes_the_parent_of_a_protected_path_read_only(tmp_path: Path) -> None:
    (tmp_path / "a/.git/hooks").mkdir(parents=True)
    bounds = SandboxPolicy(str(tmp_path), protected=(f"{tmp_path}/a/.git/hooks",))

    line = Firejail().command(bounds, ("true",), str(tmp_path))

    assert f"--read-only={tmp_path}/a" in line
    assert line.index("--read-only=/") < line.index(f"--read-write={tmp_path}")


def test_a_podman_container_is_stopped_by_its_name() -> None:
    podman = Podman()

    line = podman.command(SandboxPolicy("/tmp"), ("true",), "/tmp")

    name = next(word for word in line if word.startswith("--name=")).removeprefix("--name=")
    assert podman.end_command(line)[-1] == name


def test_the_uid_mapping_swaps_only_the_two_owners() -> None:
    lines = [tuple(map(int, line.split())) for line in entry.mapping(0, 64001).splitlines()]

    assert lines[:2] == [(0, 64001, 1), (64001, 0, 1)]
    assert sorted((first, count) for first, _, count in lines) == [
        (0, 1),
        (1, 64000),
        (64001, 1),
        (64002, 65536 - 64002),
    ]
    assert entry.mapping(7, 7).splitlines()[0] == "7 7 1"


def test_tenants_get_uids_from_a_reserved_range() -> None:
    uids = {system.tenant_uid(f"tenant-{number}") for number in range(50)}

    assert all(64000 <= uid < 65000 for uid in uids) and len(uids) > 40


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another user")
def test_as_root_bubblewrap_binds_through_the_staging_folder(tmp_path: Path) -> None:
    line = Bubblewrap().command(SandboxPolicy(str(tmp_path)), ("true",), str(tmp_path))

    place = line.index(str(tmp_path))
    assert line[place - 2 : place] == ("--bind", "/tmp/0")
    assert stat.S_ISREG(Path(line[3]).stat().st_mode) and line[3].endswith("launcher_program.py")


class Gone:
    """An engine that is not installed."""

    def __init__(self, name: str, missing: str = "") -> None:
        self.name, self._missing = name, missing

    def missing(self) -> str:
        return self._missing

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        return tuple(argv)


@pytest.mark.parametrize(
    ("bubblewrap", "native", "chosen"),
    [("", "", "bubblewrap"), ("gone", "", "native"), ("gone", "gone", "bubblewrap")],
)
def test_auto_engine_prefers_bubblewrap_then_native_and_never_none(
    bubblewrap: str, native: str, chosen: str
) -> None:
    there = {"bubblewrap": Gone("bubblewrap", bubblewrap), "native": Gone("native", native)}
    assert choose_engine("auto", {**there, "none": Gone("none")}) == chosen


def test_an_explicitly_named_engine_is_not_replaced() -> None:
    assert choose_engine("podman", {"native": Gone("native")}) == "podman"
