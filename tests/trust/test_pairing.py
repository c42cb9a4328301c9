from __future__ import annotations

import multiprocessing
import resource
import signal
import stat
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.trust.pairing import (
    Devices,
    DeviceState,
    Invitations,
    PairingRefused,
    ToolsChange,
    ToolsComparison,
)

NOW = 1_000_000.0


@pytest.fixture
def pairings(tmp_path: Path) -> Invitations:
    return Invitations(tmp_path / "pairing")


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    return Devices(tmp_path / "pairing")


def test_a_pairing_token_works_once(pairings: Invitations) -> None:
    token = pairings.create("pi", 600, NOW)

    joined = pairings.redeem(token, NOW + 1)

    assert (joined.agent_id, joined.expires) == ("pi", NOW + 600)
    with pytest.raises(PairingRefused, match="already been used"):
        pairings.redeem(token, NOW + 2)


def test_a_pairing_token_may_be_unbound_and_surrounded_by_whitespace(pairings: Invitations) -> None:
    token = pairings.create(None, 600, NOW)

    assert pairings.redeem(f" {token}\n", NOW).agent_id is None


@pytest.mark.parametrize("late", [600.0, 601.0, 3 * 86_400.0, float("nan")])
def test_an_expired_pairing_token_is_refused(pairings: Invitations, late: float) -> None:
    token = pairings.create("pi", 600, NOW)

    with pytest.raises(PairingRefused, match="expired; ask for a new one"):
        pairings.redeem(token, NOW + late)
    assert pairings.list(NOW + late) == []


@pytest.mark.parametrize("token", ["", "x", "a" * 32, "\udcff", "0" * 100_000])
def test_an_unknown_pairing_token_is_refused(pairings: Invitations, token: str) -> None:
    pairings.create("pi", 600, NOW)

    with pytest.raises(PairingRefused, match="is unknown"):
        pairings.redeem(token, NOW)
    assert len(pairings.list(NOW)) == 1


@pytest.mark.parametrize("life", [0.0, -1.0, float("nan")])
def test_an_invitation_needs_a_positive_lifetime(pairings: Invitations, life: float) -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        pairings.create("pi", life, NOW)


def test_an_invitation_can_be_revoked(pairings: Invitations) -> None:
    first, second = pairings.create("a", 600, NOW), pairings.create("b", 600, NOW + 1)
    listed = pairings.list(NOW + 2)
    assert [one.agent_id for one in listed] == ["a", "b"]

    pairings.revoke(listed[0].id)

    assert pairings.list(NOW + 2) == listed[1:]
    with pytest.raises(PairingRefused, match="is unknown"):
        pairings.redeem(first, NOW + 2)
    assert pairings.redeem(second, NOW + 2).agent_id == "b"
    for gone in listed:
        with pytest.raises(ConfigError, match="no unused invitation"):
            pairings.revoke(gone.id)


def test_old_invitations_are_deleted(pairings: Invitations) -> None:
    old = pairings.create("pi", 600, NOW)
    pairings.create("pi", 600, NOW + 30 * 86_400)

    with pytest.raises(PairingRefused, match="is unknown"):
        pairings.redeem(old, NOW)


def test_pairing_tokens_are_not_stored_and_files_are_private(
    pairings: Invitations, tmp_path: Path
) -> None:
    token = pairings.create("pi", 600, NOW)

    folder = tmp_path / "pairing"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert token not in path.read_text()
    assert len(token) == 48 and len({pairings.create(None, 1, NOW) for _ in range(50)}) == 50


def _won(task: tuple[Path, str]) -> bool:
    folder, token = task
    try:
        Invitations(folder).redeem(token, NOW)
    except PairingRefused:
        return False
    return True


@pytest.mark.process
def test_one_of_many_processes_redeeming_a_token_succeeds(tmp_path: Path) -> None:
    tokens = [Invitations(tmp_path).create(None, 600, NOW) for _ in range(10)]
    tasks = [(tmp_path, token) for token in tokens for _ in range(4)]

    with multiprocessing.get_context("spawn").Pool(4) as pool:
        won = pool.map(_won, tasks, chunksize=1)

    assert sum(won) == 10


def test_one_of_many_threads_redeeming_a_token_succeeds(tmp_path: Path) -> None:
    token = Invitations(tmp_path).create(None, 600, NOW)
    together = threading.Barrier(8)

    def bring(_number: int) -> bool:
        together.wait(20)
        return _won((tmp_path, token))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(bring, range(8))) == 1


async def test_fault_27_a_damaged_pairing_file_is_not_treated_as_empty(tmp_path: Path) -> None:
    pairings, devices = Invitations(tmp_path), Devices(tmp_path)
    pairings.create("pi", 600, NOW)
    await devices.compare_tools("pi", [("bash", "1")], NOW)
    for name in ("invitations.json", "devices.json"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-5])

    for use in (
        lambda: pairings.create("pi", 600, NOW),
        lambda: pairings.redeem("x", NOW),
        lambda: pairings.list(NOW),
        lambda: devices.get("pi"),
    ):
        with pytest.raises(ConfigError, match="restore it from a backup"):
            use()
    for change in (devices.compare_tools("pi", [], NOW), devices.approve("pi", NOW)):
        with pytest.raises(ConfigError, match="restore it from a backup"):
            await change


@contextmanager
def no_room() -> Generator[None]:
    """Let no file grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_fault_26_a_token_that_cannot_be_marked_as_used_is_not_accepted(tmp_path: Path) -> None:
    pairings = Invitations(tmp_path)
    token = pairings.create("pi", 600, NOW)
    before = (tmp_path / "invitations.json").read_bytes()

    with no_room(), pytest.raises(EvoClawError, match="free some space"):
        pairings.redeem(token, NOW)

    assert (tmp_path / "invitations.json").read_bytes() == before


TOOLS = [("read", "r1"), ("bash", "b1")]


async def test_a_new_device_needs_approval(devices: Devices) -> None:
    assert devices.get("pi") is None

    assert await devices.compare_tools("pi", TOOLS, NOW) == ToolsComparison(
        ToolsChange.FIRST, ("bash", "read")
    )
    assert await devices.compare_tools("pi", TOOLS, NOW + 1) == ToolsComparison(
        ToolsChange.FIRST, ("bash", "read")
    )

    device = devices.get("pi")
    assert device is not None
    assert (device.state, device.created, device.tools) == (DeviceState.PENDING, NOW, ())
    assert not device.may_use("read", "r1")


async def test_an_approved_device_may_use_the_tools_it_was_approved_with(devices: Devices) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)

    device = await devices.approve("pi", NOW + 1)

    assert (device.state, device.tools, device.changed) == (
        DeviceState.APPROVED,
        ("bash", "read"),
        NOW + 1,
    )
    assert device == devices.get("pi")
    assert device.may_use("bash", "b1")
    assert not device.may_use("bash", "b2")
    assert not device.may_use("write", "w1")
    assert await devices.compare_tools("pi", reversed(TOOLS), NOW + 2) == ToolsComparison(
        ToolsChange.SAME
    )


@pytest.mark.parametrize(
    ("added", "name"), [(("write", "w1"), "write"), (("bash", "changed"), "bash")]
)
async def test_a_new_or_changed_device_tool_needs_approval(
    devices: Devices, added: tuple[str, str], name: str
) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    await devices.approve("pi", NOW)

    assert await devices.compare_tools("pi", [*TOOLS, added], NOW + 1) == ToolsComparison(
        ToolsChange.GROWN, (name,)
    )

    device = devices.get("pi")
    assert device is not None and device.state is DeviceState.PENDING
    assert device.may_use("read", "r1") and not device.may_use(*added)
    assert (await devices.approve("pi", NOW + 2)).may_use(*added)
    assert await devices.compare_tools("pi", [*TOOLS, added], NOW + 3) == ToolsComparison(
        ToolsChange.SAME
    )


async def test_fewer_tools_need_no_approval(devices: Devices) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    await devices.approve("pi", NOW)

    assert await devices.compare_tools("pi", TOOLS[:1], NOW) == ToolsComparison(ToolsChange.SAME)
    assert await devices.compare_tools("pi", [], NOW) == ToolsComparison(ToolsChange.SAME)
    assert await devices.compare_tools("pi", TOOLS, NOW) == ToolsComparison(ToolsChange.SAME)


async def test_a_device_that_withdraws_new_tools_stays_approved(devices: Devices) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    before = await devices.approve("pi", NOW)
    await devices.compare_tools("pi", [*TOOLS, ("write", "w1")], NOW)

    assert await devices.compare_tools("pi", TOOLS, NOW) == ToolsComparison(ToolsChange.SAME)
    assert devices.get("pi") == before


async def test_approval_is_refused_if_the_tools_changed_since_they_were_shown(
    devices: Devices,
) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    seen = devices.all()[0].surface
    await devices.compare_tools("pi", [*TOOLS, ("rm", "!")], NOW + 1)

    with pytest.raises(PairingRefused, match="have changed since you looked"):
        await devices.approve("pi", NOW + 2, seen=seen)

    approved = await devices.approve("pi", NOW + 2, seen=devices.all()[0].surface)
    assert approved.tools[1:] == ("read", "rm")


async def test_a_revoked_device_stays_revoked_when_it_advertises_tools(devices: Devices) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    await devices.approve("pi", NOW)

    device = await devices.revoke("pi", NOW + 1)

    assert device.state is DeviceState.REVOKED and not device.may_use("read", "r1")
    assert await devices.compare_tools("pi", [], NOW + 2) == ToolsComparison(ToolsChange.REVOKED)
    assert devices.get("pi") == device
    # Let in again, it begins anew: nothing of what it had is approved.
    await devices.approve("pi", NOW + 3)
    assert await devices.compare_tools("pi", TOOLS, NOW + 4) == ToolsComparison(
        ToolsChange.GROWN, ("bash", "read")
    )


async def test_an_unknown_device_error_lists_the_known_devices(devices: Devices) -> None:
    await devices.compare_tools("b", [], NOW)
    await devices.compare_tools("a", [], NOW)

    for use in (devices.approve, devices.revoke):
        with pytest.raises(ConfigError, match="unknown edge 'pi'; known edges: a, b"):
            await use("pi", NOW)
    assert [one.agent_id for one in devices.all()] == ["a", "b"]


async def test_an_unchanged_tool_list_writes_nothing(devices: Devices, tmp_path: Path) -> None:
    await devices.compare_tools("pi", TOOLS, NOW)
    path = tmp_path / "pairing" / "devices.json"
    before = path.stat()

    await devices.compare_tools("pi", TOOLS, NOW + 1)

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
