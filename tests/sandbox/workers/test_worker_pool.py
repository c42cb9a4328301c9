"""A worker is kept and its workers are not: what one command leaves, the next does not find."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import find_cgroups
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.sandboxes import EngineSandbox, LocalSandboxes
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.processes import SOON, alive, cancelled_when_ready, unique_seconds
from tests.support.sandboxes import listing, may_sandbox, output_of, owner, policy, run, sandboxed

LEAVE = """
exec 7>/tmp/open; export LEFT=1; cd /; umask 777
echo x > /tmp/left; echo x > /var/tmp/left; echo x > /dev/shm/left
python3 - <<'END'
import ctypes
libc = ctypes.CDLL(None)
assert libc.shmget(0x1234, 64, 0o1666) >= 0 and libc.semget(0x1234, 1, 0o1666) >= 0
assert libc.msgget(0x1234, 0o1666) >= 0
libc.sethostname(b"left", 4)
for ring in (-3, -4, -5):
    libc.syscall({"x86_64": 248, "aarch64": 217}[__import__("os").uname().machine],
                 b"user", b"left", b"x", 1, ring)
END
touch /dev/left /left /etc/left /usr/left /run/left 2>/dev/null
(setsid sleep MARK >/dev/null 2>&1 &)
echo done
"""
LOOK = """
ls /tmp /var/tmp /dev/shm | grep -v -e : -e '^$' -e '^h-\\|^pytest\\|^WORK'
ls -d /dev/left /left /etc/left /usr/left /run/left /proc/self/fd/7 2>/dev/null
echo "$LEFT"; pwd; umask; hostname; pgrep sleep
tail -n +2 -q /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg
grep left /proc/keys
set -- /proc/[0-9]*; echo $#
"""
"""The shell counts the processes itself: one that is asked to may or may not see the next."""


async def test_a_reused_worker_leaks_nothing_between_commands(
    processes: LocalProcesses, tmp_path: Path
) -> None:
    top = str(tmp_path).split("/")[2]
    look = LOOK.replace("WORK", top)
    before = (await run(processes, look)).stdout
    mark = unique_seconds()

    assert await output_of(processes, LEAVE.replace("MARK", mark)) == "done"

    assert (await run(processes, look)).stdout == before
    assert alive(mark) == []


async def test_the_self_test_finds_no_escape_from_a_used_sandbox(
    processes: LocalProcesses, tmp_path: Path
) -> None:
    await run(processes, LEAVE)

    assert await SandboxSelfTest().find_escapes(policy(tmp_path, processes=800), processes) == {}


async def test_paths_are_real_and_files_belong_to_the_workspace_owner(
    either: LocalProcesses, tmp_path: Path
) -> None:
    assert await output_of(either, "pwd; mkdir made; echo x > made/file") == str(tmp_path)

    for path in (tmp_path / "made", tmp_path / "made" / "file"):
        assert owner(path) == owner(tmp_path)


async def test_commands_never_run_as_root_or_gain_privileges(either: LocalProcesses) -> None:
    shown = await output_of(
        either, "id -u; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"
    )

    uid, groups, *rights = shown.splitlines()
    assert uid != "0" and "0" not in groups.split()
    assert [line.split()[1].lstrip("0") for line in rights] == ["", "", "1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns what others may not see")
async def test_a_workspace_inside_a_root_only_folder_can_be_used(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    inner = closed / "work"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    (inner / "mine").write_text("old")
    (inner / "mine").chmod(0o600)
    async with sandboxed(policy(inner)) as processes:
        assert await output_of(processes, "cat mine; echo new > mine") == "old"

    assert (inner / "mine").read_text() == "new\n"
    assert (inner / "mine").stat().st_uid == 0


async def test_a_sandbox_has_no_network(either: LocalProcesses) -> None:
    shown = await output_of(
        either, "ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1"
    )

    assert shown.split() == ["lo"]


CALLS = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
for number in (425, 428, {"x86_64": 250, "aarch64": 219}[os.uname().machine]):
    print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
for family in (40, 38, 17):
    try:
        socket.socket(family, socket.SOCK_RAW)
    except PermissionError as problem:
        print("refused")
print(socket.gethostbyname("localhost"))
"""


@pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="no filter for this processor"
)
async def test_rarely_used_kernel_interfaces_are_blocked(
    either: LocalProcesses, tmp_path: Path
) -> None:
    """io_uring, new mounts, keys; sockets of virtual machines, of ciphers, of packets."""
    (tmp_path / "calls.py").write_text(CALLS)

    shown = await output_of(either, "python3 calls.py")

    assert shown.splitlines() == ["-1 1"] * 3 + ["refused"] * 3 + ["127.0.0.1"]


FETCH = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://any.host/\").read())'"


@pytest.mark.parametrize("warm", [True, False])
async def test_the_proxy_socket_is_the_only_egress(tmp_path: Path, warm: bool) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.start_unix_server(answer, f"{folder}/egress.sock")
        async with server:
            bounds = policy(tmp_path, proxy=f"{folder}/egress.sock")
            async with sandboxed(bounds, warm=warm) as processes:
                assert await output_of(processes, FETCH) == "b'ok'"
    assert asked[0].startswith(b"GET http://any.host/")


@pytest.mark.parametrize(
    "command",
    [
        "echo x > .git/hooks/pre-commit",
        "mv .git/hooks .git/other",
        "mv .git other",
        "rm -rf .git",
        "echo x >> .git/config",
        "echo x >> .bashrc",
        "rm .bashrc",
        "ln -sf /tmp .evoclaw/skills",
        "mv deep/inner/.git deep/inner/git",
    ],
)
async def test_fault_37_protected_paths_cannot_be_changed_or_moved(
    tmp_path: Path, command: str
) -> None:
    for folder in (".git/hooks", ".evoclaw", "deep/inner/.git"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (".git/config", ".bashrc", ".evoclaw/config.toml"):
        (tmp_path / file).write_text("before")
    async with sandboxed(policy(tmp_path)) as processes:
        before = listing(tmp_path)
        assert (await run(processes, command)).exit_code != 0

    assert listing(tmp_path) == before
    assert (tmp_path / ".git/config").read_text() == "before"
    assert (tmp_path / ".bashrc").read_text() == "before"


@pytest.mark.parametrize("name", [".bashrc", "agent.toml", ".envrc", ".ssh/authorized_keys"])
async def test_fault_37_a_created_protected_file_is_quarantined(
    processes: LocalProcesses, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ToolFailure) as refused:
        await run(processes, f"mkdir -p $(dirname {name}); echo evil > {name}")

    assert refused.value.kind is ErrorKind.PERMISSION_DENIED and name[:4] in refused.value.message
    assert not (tmp_path / name).exists()
    assert listing(tmp_path, "*refused-*")


async def test_fault_37_hooks_of_a_new_repository_are_quarantined(
    processes: LocalProcesses, tmp_path: Path
) -> None:
    with pytest.raises(ToolFailure, match="protected"):
        await run(processes, "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit")
    assert not (tmp_path / ".git").exists()

    assert (
        await output_of(processes, "mkdir -p .git/hooks; touch .git/hooks/x.sample; echo ok")
        == "ok"
    )
    with pytest.raises(ToolFailure, match="protected"):
        await run(processes, "echo evil > .git/hooks/pre-commit")
    assert not (tmp_path / ".git/hooks/pre-commit").exists()


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; echo ready; while :; do sleep {0}; done",
        "echo ready; kill -STOP $$; sleep {0}",
        "sleep {0} & kill -STOP $!; echo ready; wait",
        "(sleep 0.01 & exec sleep {0}) & echo ready; wait",
        "kill -9 1; kill -STOP 1; kill -9 -1; echo ready; sleep {0}",
    ],
    ids=["ignores TERM", "stops itself", "stopped child", "zombie", "kills all"],
)
async def test_fault_33_processes_that_ignore_sigterm_are_killed_and_reaped(
    processes: LocalProcesses, command: str
) -> None:
    mark = unique_seconds()

    assert await cancelled_when_ready(processes, command.format(mark)) < SOON
    assert alive(mark) == []


async def test_a_worker_that_dies_is_replaced(processes: LocalProcesses) -> None:
    mark = unique_seconds()
    ready = asyncio.Event()
    running = asyncio.create_task(
        run(processes, f"echo ready; sleep {mark}", on_output=lambda _: ready.set())
    )
    async with asyncio.timeout(30):
        await ready.wait()
    assert len(_workers()) == 1

    os.kill(_workers()[0], signal.SIGKILL)

    assert (await running).exit_code == -signal.SIGKILL
    assert alive(mark) == []
    assert await output_of(processes, "echo again") == "again"


async def test_an_idle_worker_stops_and_restarts_on_demand(tmp_path: Path) -> None:
    if not may_sandbox() or Bubblewrap().missing():
        pytest.skip("no sandbox can be built here")
    sandbox = EngineSandbox(Bubblewrap(), policy(tmp_path), self_test=None, idle=0.05)
    processes = LocalProcesses(tmp_path, sandbox=sandbox)
    try:
        async with asyncio.timeout(30):
            assert await output_of(processes, "echo one") == "one"
            while _workers():
                await asyncio.to_thread(os.sched_yield)
            assert await output_of(processes, "sleep 0.2; echo two") == "two"
    finally:
        await sandbox.close()


def _workers() -> list[int]:
    """The processes of sandboxes below this one."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Gone meanwhile.
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and b"\0pool\0" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


async def test_warm_workers_are_not_shared_between_tenants_or_trust_levels(tmp_path: Path) -> None:
    if not may_sandbox():
        pytest.skip("no sandbox can be built here")
    engine = Bubblewrap()
    if missing := engine.missing():
        pytest.skip(missing)
    sandboxes = LocalSandboxes(policy(tmp_path), {engine.name: engine}, SandboxSelfTest())
    try:
        for tenant, trusted in (("a", True), ("a", False), ("b", True), ("a", True)):
            exec = sandboxes.exec_in(tenant=tenant, trusted=trusted)
            done = await exec.run(("id", "-u"))
            assert done.isolation == "bubblewrap"
        assert len(_workers()) == 3
    finally:
        await sandboxes.close()
    assert _workers() == []


async def test_an_unknown_engine_is_refused_and_none_reports_no_isolation(tmp_path: Path) -> None:
    sandboxes = LocalSandboxes(policy(tmp_path), {}, SandboxSelfTest())

    with pytest.raises(ToolFailure) as refused:
        sandboxes.exec_in("bubblewrap")
    assert refused.value.kind is ErrorKind.SANDBOX_UNAVAILABLE
    assert (await sandboxes.exec_in("none").run(("true",))).isolation in ("none", "pid-namespace")


KILLED = """
import asyncio, os, sys
from pathlib import Path
from tests.support.sandboxes import policy, sandboxed

async def main(root, mark):
    async with sandboxed(policy(Path(root))) as processes:
        await processes.run(
            ["bash", "-c", f"setsid sleep {mark} & echo ready; sleep {mark}"],
            on_output=lambda text: print(text, end="", flush=True),
        )

asyncio.run(main(*sys.argv[1:]))
"""


async def test_workers_die_when_the_parent_process_is_killed(tmp_path: Path) -> None:
    if not may_sandbox() or Bubblewrap().missing():
        pytest.skip("no sandbox can be built here")
    mark = unique_seconds()
    async with asyncio.timeout(20):
        ours = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), mark),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert ours.stdout is not None
        assert await ours.stdout.readline() == b"ready\n"
        ours.kill()
        await ours.wait()
        while alive(mark) or alive(str(tmp_path)):
            await asyncio.to_thread(os.sched_yield)
    # The groups of the dead are removed by whoever comes next.
    find_cgroups()
    assert listing(Path("/sys/fs/cgroup"), f"evoclaw-{ours.pid}-*") == []
