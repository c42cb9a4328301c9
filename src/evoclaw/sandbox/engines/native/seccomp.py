"""The seccomp filter of the native sandbox: the system calls that a command is refused.

The filter is a deny list, not an allow list: programs of every kind run in the sandbox, and
Landlock and namespaces limit what they reach. The filter refuses what would undo those or bypass
them, and the parts of the kernel that sandbox escapes have used most often.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from evoclaw.core.errors import ConfigError


class NativeMode(StrEnum):
    """The kernel features of a native sandbox."""

    NAMESPACES = "namespaces"
    """Namespaces hide what the policy does not name; with Landlock, seccomp and rlimits."""
    RULES = "rules"
    """Landlock, seccomp and rlimits alone, where namespaces are not available."""


SYSCALL_NUMBERS = MappingProxyType(
    {
        # Undoing the sandbox.
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
        "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428),
        "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
        "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
        # Other processes' memory and descriptors.
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
        "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
        "move_pages": (279, 239), "migrate_pages": (256, 238), "process_mrelease": (448, 448),
        # Large parts of the kernel that commands do not need.
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
        "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
        "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427), "fanotify_init": (300, 262),
        "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
        "lookup_dcookie": (212, 18),
        # The machine.
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
        "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
        "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
        "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170),
        "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
        "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
        "personality": (135, 92), "nfsservctl": (180, 42), "iopl": (172, None),
        "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
        "_sysctl": (156, None), "ustat": (136, None), "sysfs": (139, None),
        "create_module": (174, None), "get_kernel_syms": (177, None),
        "query_module": (178, None),
        # Judged by their arguments.
        "clone": (56, 220), "clone3": (435, 435), "openat2": (437, 437), "socket": (41, 198),
        "socketpair": (53, 199), "ioctl": (16, 29), "mknod": (133, None), "mknodat": (259, 33),
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
        "open": (2, None), "openat": (257, 56), "creat": (85, None), "utimensat": (280, 88),
        "prlimit64": (302, 261), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
        "sched_setparam": (142, 118), "sched_setattr": (314, 274),
        "sched_setaffinity": (203, 122),
        # Not covered by Landlock; only a namespace would isolate these.
        "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
        "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
        "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
        "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
        "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
        "inotify_add_watch": (254, 27), "ioprio_set": (251, 30), "shmget": (29, 194),
        "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189),
        "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193),
        "semctl": (66, 191), "semtimedop": (220, 192), "mq_open": (240, 180),
        "mq_unlink": (241, 181),
    }
)  # fmt: skip
"""Each call's number on x86-64 and on arm64; None where it does not exist."""

FIRST_JUDGED_SYSCALL = "clone"
FIRST_UNSEEN_SYSCALL = "chown"
_NAMES = tuple(SYSCALL_NUMBERS)
FORBIDDEN_SYSCALLS = _NAMES[: _NAMES.index(FIRST_JUDGED_SYSCALL)]
"""Refused always."""
UNSEEN_SYSCALLS = _NAMES[_NAMES.index(FIRST_UNSEEN_SYSCALL) :]
"""Refused where no namespace isolates them from the host."""

ARCHITECTURES = MappingProxyType({"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)})
X32_SYSCALL_BIT = 0x40000000
UNIX, INET, INET6 = 1, 2, 10
STREAM, SEQPACKET, KIND = 1, 5, 0xF
NEW_NAMESPACES = 0x7E020000
TIOCSTI, TIOCLINUX, SETFLAGS = 0x5412, 0x541C, 0x40086602
SET_ID_BITS, CHARACTER, BLOCK, FILE_TYPE = 0o6000, 0o020000, 0o060000, 0o170000
CREATING_OPEN_FLAGS = 0o100 | 0o20000000
"""O_CREAT and the kernel's O_TMPFILE bit: only then the mode counts."""

LOAD, IS, AT_LEAST, ANY_BIT, KEEP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000


class FilterStep(NamedTuple):
    """An instruction of the filter."""

    code: int
    yes: int
    no: int
    value: int


FilterSteps: TypeAlias = list[FilterStep]

PASS_STEP = FilterStep(RETURN, 0, 0, ALLOW)
DENY_STEP = FilterStep(RETURN, 0, 0, ERROR | errno.EPERM)
ABSENT_STEP = FilterStep(RETURN, 0, 0, ERROR | errno.ENOSYS)


@cache
def call_filter(how: NativeMode, *, network: bool, machine: str) -> bytes:
    """The filter for a kind of sandbox on a kind of machine, as BPF.

    Args:
        how: The other kernel features of the sandbox.
        network: Whether it has a network namespace to reach the egress proxy.
        machine: The output of `uname -m`.
    """
    if machine not in ARCHITECTURES:
        raise ConfigError(
            f"The native sandbox does not support {machine!r} machines; choose another engine."
        )
    audited, column = ARCHITECTURES[machine]
    steps = [
        FilterStep(LOAD, 0, 0, 4),
        FilterStep(IS, 1, 0, audited),
        FilterStep(RETURN, 0, 0, KILL),
    ]
    steps.append(FilterStep(LOAD, 0, 0, 0))
    if machine == "x86_64":
        steps += [FilterStep(AT_LEAST, 0, 1, X32_SYSCALL_BIT), ABSENT_STEP]
    for name, block in _blocks(how, network=network).items():
        number = SYSCALL_NUMBERS[name][column]
        if number is not None:
            steps += [FilterStep(IS, 0, len(block), number), *block]
    steps.append(PASS_STEP)
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _blocks(how: NativeMode, *, network: bool) -> dict[str, FilterSteps]:
    """The verdict on each call: every block ends in a verdict."""
    families = (UNIX, INET, INET6) if network else (UNIX,)
    blocks = dict.fromkeys(FORBIDDEN_SYSCALLS, [DENY_STEP])
    blocks |= {"clone3": [ABSENT_STEP], "openat2": [ABSENT_STEP]}
    blocks["clone"] = _unless_bits(0, NEW_NAMESPACES)
    blocks["socket"] = _only(0, families)
    blocks["socketpair"] = _only(0, (UNIX,))
    blocks["ioctl"] = _none_of(1, (TIOCSTI, TIOCLINUX))
    blocks["mknod"], blocks["mknodat"] = _no_device(1), _no_device(2)
    blocks["chmod"] = blocks["fchmod"] = _unless_bits(1, SET_ID_BITS)
    blocks["fchmodat"] = blocks["fchmodat2"] = _unless_bits(2, SET_ID_BITS)
    blocks["creat"] = _unless_bits(1, SET_ID_BITS)
    blocks["open"], blocks["openat"] = _opened(1), _opened(2)
    if how is NativeMode.RULES:
        blocks |= dict.fromkeys(
            (*UNSEEN_SYSCALLS, "chmod", "fchmod", "fchmodat", "fchmodat2"), [DENY_STEP]
        )
        blocks["socket"] = [DENY_STEP]
        # A datagram socket pair can be redirected to any address.
        blocks["socketpair"] = [
            *_load(0),
            FilterStep(IS, 1, 0, UNIX),
            DENY_STEP,
            *_only(1, _SOCKET_KINDS, KIND),
        ]
        blocks["ioctl"] = _none_of(1, (TIOCSTI, TIOCLINUX, SETFLAGS))
        blocks["utimensat"] = [
            *_load(1),
            FilterStep(IS, 1, 0, 0),
            DENY_STEP,
            *_only(1, (0,), high=True),
        ]
        blocks |= dict.fromkeys(_SYSCALLS_ON_OTHERS, _only(0, (0,)))
        blocks["setpriority"] = [*_load(0), FilterStep(IS, 1, 0, 0), DENY_STEP, *_only(1, (0,))]
    return blocks


_SOCKET_KINDS = (STREAM, SEQPACKET)
_SYSCALLS_ON_OTHERS = (
    "prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity",
)  # fmt: skip
"""Calls that take a pid, where 0 is the calling process."""


def _load(argument: int, *, high: bool = False) -> FilterSteps:
    return [FilterStep(LOAD, 0, 0, 16 + 8 * argument + (4 if high else 0))]


def _unless_bits(argument: int, bits: int) -> FilterSteps:
    return [*_load(argument), FilterStep(ANY_BIT, 0, 1, bits), DENY_STEP, PASS_STEP]


def _only(
    argument: int, values: Sequence[int], mask: int = 0, *, high: bool = False
) -> FilterSteps:
    steps = _load(argument, high=high)
    if mask:
        steps.append(FilterStep(KEEP, 0, 0, mask))
    for value in values:
        steps += [FilterStep(IS, 0, 1, value), PASS_STEP]
    return [*steps, DENY_STEP]


def _none_of(argument: int, values: Sequence[int]) -> FilterSteps:
    steps = _load(argument)
    for value in values:
        steps += [FilterStep(IS, 0, 1, value), DENY_STEP]
    return [*steps, PASS_STEP]


def _no_device(argument: int) -> FilterSteps:
    kind = [
        FilterStep(KEEP, 0, 0, FILE_TYPE),
        FilterStep(IS, 2, 0, CHARACTER),
        FilterStep(IS, 1, 0, BLOCK),
    ]
    return [
        *_load(argument),
        FilterStep(ANY_BIT, 0, 1, SET_ID_BITS),
        DENY_STEP,
        *kind,
        PASS_STEP,
        DENY_STEP,
    ]


def _opened(flags: int) -> FilterSteps:
    """Allow creating a file, but not a setuid or setgid file."""
    return [
        *_load(flags),
        FilterStep(ANY_BIT, 1, 0, CREATING_OPEN_FLAGS),
        PASS_STEP,
        *_unless_bits(flags + 1, SET_ID_BITS),
    ]
