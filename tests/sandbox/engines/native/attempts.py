"""A program of its own, run inside a sandbox: try to get out, and say of each way how it ended.

Standard library only. What it prints, `{"way": "PermissionError 1" or "done"}`, is what it thinks;
whether something got out is seen from outside.
"""

# Each is tried where it stands, so a loop's variables are the right ones; and nothing is loaded
# that a sandbox might not have.
# ruff: noqa: B023, PTH101, PTH103, PTH104, PTH105, PTH108, PTH120, PTH123, PTH208, PTH211

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
given: dict[str, Any] = json.loads(sys.argv[1])
found: dict[str, Any] = {}
if os.getuid() == 0:
    sys.exit("This is root: nothing is tried, for it would succeed.")


def attempt(way: str) -> Callable[[Callable[[], object]], None]:
    def keep(function: Callable[[], object]) -> None:
        if way not in given.get("only", [way]):
            return
        try:
            answer = function()
        except OSError as problem:
            found[way] = f"{type(problem).__name__} {problem.errno}"
        else:
            found[way] = "done" if answer is None else answer

    return keep


def system(number_by_machine: dict[str, int], *arguments: object) -> None:
    number = number_by_machine[os.uname().machine]
    if libc.syscall(number, *arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def function(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@attempt("write outside")
def _() -> None:
    with open(given["marker"], "w") as file:
        file.write("out")


@attempt("write to the system")
def _() -> None:
    with open("/usr/evoclaw-was-here", "w") as file:
        file.write("out")


@attempt("read a secret")
def _() -> object:
    with open(given["secret"]) as file:
        return file.read()


@attempt("list the folder of the secret")
def _() -> object:
    return os.listdir(os.path.dirname(given["secret"]))


@attempt("truncate outside")
def _() -> None:
    os.truncate(given["secret"], 0)


@attempt("change a mode outside")
def _() -> None:
    os.chmod(given["secret"], 0o777)


@attempt("change a time outside")
def _() -> None:
    os.utime(given["secret"], (1, 1))


@attempt("link a secret into the workspace")
def _() -> None:
    os.link(given["secret"], "stolen")


@attempt("rename a secret into the workspace")
def _() -> None:
    os.rename(given["secret"], "stolen")


@attempt("go through a link")
def _() -> object:
    os.symlink(given["secret"], "pointing")
    with open("pointing") as file:
        return file.read()


for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):

    @attempt(f"tcp to {address}")
    def _() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as out:
            out.settimeout(2)
            out.connect((address, given["tcp"]))
            out.send(b"out")

    @attempt(f"udp to {address}")
    def _():
        with socket.socket(family, socket.SOCK_DGRAM) as out:
            out.sendto(b"out", (address, given["udp"]))


@attempt("unix socket")
def _() -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(given["unix"])
        out.send(b"out")


@attempt("unix datagram")
def _() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(b"out", given["datagram"])


@attempt("a pair of datagram sockets")
def _() -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, two:
        one.sendto(b"out", given["datagram"])


@attempt("abstract socket")
def _() -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect("\0" + given["abstract"])
        out.send(b"out")


for name, family, kind, protocol in (
    ("raw", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    ("ping", socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
    ("packet", socket.AF_PACKET, socket.SOCK_RAW, 0),
    ("netlink", socket.AF_NETLINK, socket.SOCK_RAW, 0),
    ("vsock", 40, socket.SOCK_STREAM, 0),
    ("alg", 38, socket.SOCK_SEQPACKET, 0),
    ("bluetooth", 31, socket.SOCK_RAW, 0),
):

    @attempt(f"{name} socket")
    def _() -> None:
        socket.socket(family, kind, protocol).close()


@attempt("dns")
def _() -> object:
    return str(socket.getaddrinfo("name.evoclaw.test", 80))


@attempt("signal a process outside")
def _() -> None:
    os.kill(given["pid"], 15)


@attempt("signal everybody")
def _() -> None:
    # The kernel calls it done even if it was allowed for nobody.
    os.kill(-1, 15)


@attempt("signal through a descriptor")
def _() -> None:
    system({"x86_64": 424, "aarch64": 424}, os.pidfd_open(given["pid"]), 15, None, 0)


@attempt("read what a process outside was called with")
def _() -> object:
    with open(f"/proc/{given['pid']}/cmdline", "rb") as file:
        return file.read().decode()


@attempt("read environments")
def _() -> object:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if given["password"].encode() in file.read():
                        return "found"
            except OSError:
                continue
    raise OSError(errno.ENOENT, "none has it")


@attempt("renice a process outside")
def _() -> None:
    os.setpriority(os.PRIO_PROCESS, given["pid"], 19)


@attempt("limit a process outside")
def _() -> None:
    import resource

    resource.prlimit(given["pid"], resource.RLIMIT_CPU, (1, 1))


@attempt("trace a process outside")
def _() -> None:
    system({"x86_64": 101, "aarch64": 117}, 16, given["pid"], 0, 0)


@attempt("trace at all")
def _() -> None:
    system({"x86_64": 101, "aarch64": 117}, 0, 0, 0, 0)


@attempt("read memory of a process outside")
def _() -> None:
    system({"x86_64": 310, "aarch64": 270}, given["pid"], 0, 0, 0, 0, 0)


@attempt("remount the root")
def _() -> None:
    function("mount", None, b"/", None, 32, None)


@attempt("mount")
def _() -> None:
    function("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None)


@attempt("unmount")
def _() -> None:
    function("umount2", b"/proc", 2)


@attempt("take a tree of mounts")
def _() -> None:
    libc.syscall.restype = ctypes.c_long
    system({"x86_64": 428, "aarch64": 428}, -100, b"/", 1)


@attempt("change the root")
def _() -> None:
    os.chroot(".")


@attempt("make a device")
def _() -> None:
    os.mknod("device", 0o020666, os.makedev(1, 5))


@attempt("make a block device")
def _() -> None:
    os.mknod("disk", 0o060666, os.makedev(254, 0))


@attempt("a user namespace")
def _() -> None:
    function("unshare", 0x10000000)


@attempt("a user namespace by clone")
def _() -> None:
    system({"x86_64": 56, "aarch64": 220}, 0x10000000 | 17, 0, 0, 0, 0)


@attempt("a user namespace by clone3")
def _() -> None:
    request = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
    system({"x86_64": 435, "aarch64": 435}, request, 88)


@attempt("enter a namespace")
def _() -> None:
    function("setns", 0, 0)


@attempt("make a file run as its owner")
def _() -> None:
    with open("lends", "w"):
        os.chmod("lends", 0o4755)


@attempt("make a file run as its owner from the start")
def _() -> None:
    os.close(os.open("lends too", os.O_CREAT | os.O_WRONLY, 0o4755))


@attempt("become root by a program that lends its owner's rights")
def _() -> None:
    done = subprocess.run([given["setuid"], "-u"], capture_output=True, text=True, check=False)
    if done.stdout.strip() != "0":
        raise PermissionError(errno.EPERM, done.stderr)


@attempt("become root")
def _() -> None:
    os.setuid(0)


for name, numbers, arguments in (
    ("io_uring", {"x86_64": 425, "aarch64": 425}, (1, b"\0" * 120)),
    ("bpf", {"x86_64": 321, "aarch64": 280}, (0, None, 0)),
    ("perf", {"x86_64": 298, "aarch64": 241}, (None, 0, -1, -1, 0)),
    ("keys", {"x86_64": 250, "aarch64": 219}, (0, -3, 0)),
    ("userfaultfd", {"x86_64": 323, "aarch64": 282}, (0,)),
    ("handles", {"x86_64": 304, "aarch64": 265}, (-100, None, 0)),
    ("modules", {"x86_64": 313, "aarch64": 273}, (-1, b"", 0)),
    ("kexec", {"x86_64": 246, "aarch64": 104}, (0, 0, None, 0)),
    ("personality", {"x86_64": 135, "aarch64": 92}, (0x0040000,)),
    ("another abi", {"x86_64": 0x40000000 + 39, "aarch64": 9999}, ()),
):

    @attempt(name)
    def _() -> None:
        system(numbers, *arguments)


@attempt("type into the terminal")
def _() -> None:
    function("ioctl", 0, 0x5412, b"x")


@attempt("an inherited descriptor")
def _() -> object:
    return os.read(given["descriptor"], 100).decode()


@attempt("a disk")
def _() -> object:
    for name in ("vda", "sda", "nvme0n1", "mem", "kmsg", "tty", "ptmx", "fuse", "kvm"):
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDWR))
        except OSError:
            continue
        return name
    raise OSError(errno.ENOENT, "none")


@attempt("change a protected file")
def _() -> None:
    with open(".git/hooks/pre-commit", "w") as file:
        file.write("out")


@attempt("change a protected file that was not there")
def _() -> None:
    with open(".bashrc", "w") as file:
        file.write("out")


@attempt("move away what holds a protected file")
def _() -> None:
    os.rename(".git", "was")
    os.makedirs(".git/hooks")
    with open(".git/hooks/pre-commit", "w") as file:
        file.write("out")


@attempt("remove a protected file")
def _() -> None:
    os.unlink(".git/hooks/post-commit")


@attempt("link over a protected file")
def _() -> None:
    os.symlink("/bin/true", "another")
    os.replace("another", ".git/hooks/post-commit")


found["uid"] = os.getuid()
found["no new privileges"] = libc.prctl(39, 0, 0, 0, 0)
sys.stdout.write(json.dumps(found))
