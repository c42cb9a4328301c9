"""The filter of system calls, run as the kernel runs it: also for machines that are not here."""

from __future__ import annotations

import errno
import struct

import pytest

from evoclaw.sandbox.engines.native.seccomp import (
    ALLOW,
    ARCHITECTURES,
    ERROR,
    FORBIDDEN_SYSCALLS,
    KILL,
    SYSCALL_NUMBERS,
    UNSEEN_SYSCALLS,
    NativeMode,
    call_filter,
)

EPERM, ENOSYS = ERROR | errno.EPERM, ERROR | errno.ENOSYS
HARMLESS = {"x86_64": (0, 1, 3, 9, 39, 59, 62, 231), "aarch64": (63, 64, 57, 222, 172, 221, 129)}
"""read, write, close, mmap, getpid, execve, kill and the like."""


def decide(code: bytes, number: int, arguments: tuple[int, ...] = (), audited: int = 0) -> int:
    """What the kernel would do with one call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<iIQ6Q", number, audited, 0, *padded)
    steps = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at = held = 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        match kind:
            case 0x20:
                held = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                held &= value
            case 0x06:
                return value
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x45:
                at += yes if held & value else no
            case _:
                raise AssertionError(f"an unknown instruction {kind:#x}")


class Filter:
    """One filter, asked by the names of calls."""

    def __init__(self, machine: str, how: NativeMode, *, network: bool = False) -> None:
        self.audited, self._column = ARCHITECTURES[machine]
        self._code = call_filter(how, network=network, machine=machine)

    def number(self, name: str) -> int | None:
        return SYSCALL_NUMBERS[name][self._column]

    def __call__(self, name: str | int, *arguments: int) -> int:
        number = self.number(name) if isinstance(name, str) else name
        # A call that a machine does not have is refused by its kernel.
        return EPERM if number is None else decide(self._code, number, arguments, self.audited)


@pytest.fixture(params=ARCHITECTURES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("how", NativeMode)
def test_forbidden_syscalls_are_refused_and_others_allowed(machine: str, how: NativeMode) -> None:
    asked = Filter(machine, how)
    assert {asked(name) for name in FORBIDDEN_SYSCALLS} == {EPERM}
    assert {asked(number) for number in HARMLESS[machine]} == {ALLOW}
    assert asked("clone3") == asked("openat2") == ENOSYS


@pytest.mark.parametrize("how", NativeMode)
def test_syscalls_of_another_architecture_kill_the_process(machine: str, how: NativeMode) -> None:
    code = call_filter(how, network=False, machine=machine)
    assert decide(code, 1, audited=0x40000003) == KILL


def test_x32_syscalls_return_enosys() -> None:
    assert Filter("x86_64", NativeMode.RULES)(0x40000000 | 41, 2, 1, 0) == ENOSYS


@pytest.mark.parametrize("how", NativeMode)
def test_clone_cannot_create_namespaces(machine: str, how: NativeMode) -> None:
    asked = Filter(machine, how)
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert asked("clone", 1 << bit | 17) == EPERM
    assert asked("clone", 0x01200011) == ALLOW
    assert asked("clone", 0x003D0F00) == ALLOW


def test_only_allowed_socket_families_can_be_created(machine: str) -> None:
    families = range(0, 50)

    def allowed(how: NativeMode, *, network: bool) -> list[int]:
        asked = Filter(machine, how, network=network)
        return [family for family in families if asked("socket", family, 1, 0) == ALLOW]

    assert allowed(NativeMode.NAMESPACES, network=False) == [1]
    assert allowed(NativeMode.NAMESPACES, network=True) == [1, 2, 10]
    assert allowed(NativeMode.RULES, network=False) == []
    # The kernel looks at the low half of the register only.
    assert Filter(machine, NativeMode.NAMESPACES)("socket", 1 << 32 | 2, 1, 0) == EPERM


def test_without_namespaces_datagram_socket_pairs_are_refused(machine: str) -> None:
    asked = Filter(machine, NativeMode.RULES)
    assert asked("socketpair", 1, 1) == asked("socketpair", 1, 5 | 0o2000000) == ALLOW
    assert asked("socketpair", 1, 2) == asked("socketpair", 1, 2 | 0o2000000) == EPERM
    assert asked("socketpair", 2, 1) == EPERM


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000])
def test_setuid_and_setgid_files_cannot_be_created(machine: str, bits: int) -> None:
    asked = Filter(machine, NativeMode.NAMESPACES)
    for name, before in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        assert asked(name, *(0,) * before, 0o755 | bits) == EPERM
        if asked.number(name) is not None:
            assert asked(name, *(0,) * before, 0o1755) == ALLOW
    for flags in (0o100, 0o1101, 0o20200000):
        assert asked("openat", 0, 0, flags, 0o755 | bits) == EPERM
        assert asked("openat", 0, 0, flags, 0o755) == ALLOW
    assert asked("openat", 0, 0, 0, 0o755 | bits) == ALLOW
    assert asked("mknodat", 0, 0, 0o100755 | bits) == EPERM


@pytest.mark.parametrize("how", NativeMode)
def test_device_nodes_cannot_be_created_but_pipes_can(machine: str, how: NativeMode) -> None:
    asked = Filter(machine, how)
    assert asked("mknodat", 0, 0, 0o020666) == asked("mknodat", 0, 0, 0o060666) == EPERM
    assert asked("mknodat", 0, 0, 0o010666) == asked("mknodat", 0, 0, 0o100666) == ALLOW


@pytest.mark.parametrize("how", NativeMode)
def test_tiocsti_is_refused(machine: str, how: NativeMode) -> None:
    asked = Filter(machine, how)
    assert asked("ioctl", 0, 0x5412) == asked("ioctl", 0, 1 << 32 | 0x5412) == EPERM
    assert asked("ioctl", 0, 0x541C) == EPERM
    assert asked("ioctl", 0, 0x5401) == ALLOW


def test_without_namespaces_syscalls_not_covered_by_landlock_are_refused(machine: str) -> None:
    rules, spaces = Filter(machine, NativeMode.RULES), Filter(machine, NativeMode.NAMESPACES)
    for name in (*UNSEEN_SYSCALLS, "chmod", "fchmod", "fchmodat", "fchmodat2"):
        assert rules(name) == EPERM
        if spaces.number(name) is not None:
            assert spaces(name) == ALLOW


def test_without_namespaces_a_process_changes_only_its_own_limits(machine: str) -> None:
    asked = Filter(machine, NativeMode.RULES)
    for name in ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setscheduler"):
        assert asked(name, 0) == ALLOW
        assert asked(name, 1234) == EPERM
    assert asked("setpriority", 0, 0) == ALLOW
    assert asked("setpriority", 0, 1234) == asked("setpriority", 2, 0) == EPERM
    assert asked("utimensat", 3, 0) == ALLOW
    assert asked("utimensat", -100 & 0xFFFFFFFF, 0x7F0000000000) == EPERM
    assert asked("utimensat", -100 & 0xFFFFFFFF, 0x1000) == EPERM
