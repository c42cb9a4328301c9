"""What a native sandbox holds in: every way out is tried from inside and watched from outside."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.native.seccomp import NativeMode
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.sandbox.engines.native.sandboxes import AS_NOBODY, KINDS, NativeSandbox, make_sandbox

ATTEMPTS = Path(__file__).with_name("attempts.py").read_text()
PASSWORD = "correct-horse-battery"
REACHES_NOBODY = "signal everybody"
"""The kernel calls it done even when it was allowed for nobody: the one outside must live."""


class Outside:
    """What is to be found outside of a sandbox, and whether anybody found it."""

    def __init__(self, sandbox: NativeSandbox, stack: ExitStack) -> None:
        place = sandbox.place / "outside"
        place.mkdir()
        place.chmod(0o777)
        self.secret, self.marker = place / "secret", place / "marker"
        self.secret.write_text("the secret")
        self.secret.chmod(0o666)
        sandbox.give(self.secret)
        self.time = self.secret.stat().st_mtime
        before = AS_NOBODY if sandbox.uid != os.geteuid() else ()
        self.sleeper = subprocess.Popen(
            (*before, "sleep", "600"), env={"PATH": os.environ["PATH"], "PASSWORD": PASSWORD}
        )
        stack.callback(self.sleeper.wait, 10)
        stack.callback(self.sleeper.kill)
        self.sockets: dict[str, socket.socket] = {}
        for name, family, kind, address in (
            ("tcp", socket.AF_INET6, socket.SOCK_STREAM, ("::", 0)),
            ("udp", socket.AF_INET6, socket.SOCK_DGRAM, ("::", 0)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(place / "u")),
            ("datagram", socket.AF_UNIX, socket.SOCK_DGRAM, str(place / "d")),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0evoclaw-{os.getpid()}"),
        ):
            listening = stack.enter_context(socket.socket(family, kind))
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind(address)
            listening.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listening.listen()
            if isinstance(address, str) and address.startswith("/"):
                Path(address).chmod(0o777)
            self.sockets[name] = listening

    def was_reached(self) -> list[str]:
        reached: list[str] = []
        for name, listening in self.sockets.items():
            try:
                if listening.type == socket.SOCK_STREAM:
                    listening.accept()[0].close()
                else:
                    listening.recv(100)
            except BlockingIOError:
                continue
            reached.append(name)
        return reached

    def seen_from_inside(self) -> dict[str, Any]:
        names = {name: one.getsockname() for name, one in self.sockets.items()}
        return {
            "marker": str(self.marker),
            "secret": str(self.secret),
            "tcp": names["tcp"][1],
            "udp": names["udp"][1],
            "unix": names["unix"],
            "datagram": names["datagram"],
            "abstract": names["abstract"][1:].decode(),
            "pid": self.sleeper.pid,
            "password": PASSWORD,
        }


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(kind))
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> NativeSandbox:
    who, how = request.param
    return make_sandbox(who, how, tmp_path)


@pytest.fixture
def outside(sandbox: NativeSandbox) -> Iterator[Outside]:
    with ExitStack() as stack:
        yield Outside(sandbox, stack)


def _furnished(sandbox: NativeSandbox) -> tuple[str, ...]:
    """A workspace with what may not be changed in it; where that cannot be, without."""
    if sandbox.engine.how() is NativeMode.RULES:
        return ()
    git = sandbox.workspace / ".git"
    hooks = git / "hooks"
    hooks.mkdir(parents=True)
    hook = hooks / "post-commit"
    hook.write_text("as it was")
    sandbox.give(git, hooks, hook)
    return (str(hooks), str(sandbox.workspace / ".bashrc"))


def _lending(sandbox: NativeSandbox) -> str:
    """A program of root's that lends its rights to whoever runs it."""
    program = shutil.which("id", path="/usr/bin:/bin")
    assert program is not None
    lending = sandbox.workspace / "lending"
    shutil.copy(program, lending)
    lending.chmod(0o4755 if os.geteuid() == 0 else 0o755)
    return str(lending)


def test_fault_36_nothing_escapes_a_native_sandbox(
    sandbox: NativeSandbox, outside: Outside
) -> None:
    protected = _furnished(sandbox)
    read, write = os.pipe()
    os.write(write, b"inherited")
    given = outside.seen_from_inside() | {"descriptor": read, "setuid": _lending(sandbox)}
    done = sandbox.run(
        sandbox.python,
        *("-I", "-S", "-c", ATTEMPTS, json.dumps(given)),
        protected=protected,
        pass_fds=[read],
    )
    os.close(read)
    os.close(write)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("uid") != 0
    assert found.pop("no new privileges") == 1
    found.pop(REACHES_NOBODY)
    if not protected:
        found = {way: answer for way, answer in found.items() if "protected" not in way}
    assert {way: answer for way, answer in found.items() if "rror " not in answer} == {}
    assert len(found) > 60
    assert outside.was_reached() == []
    assert outside.secret.read_text() == "the secret"
    assert outside.secret.stat().st_mode & 0o777 == 0o666
    assert outside.secret.stat().st_mtime == outside.time
    assert not outside.marker.exists()
    assert outside.sleeper.poll() is None
    assert os.getpriority(os.PRIO_PROCESS, outside.sleeper.pid) == os.nice(0)
    if not protected:
        return
    hooks = sandbox.workspace / ".git" / "hooks"
    assert [one.name for one in hooks.iterdir()] == ["post-commit"]
    assert (hooks / "post-commit").read_text() == "as it was"
    bashrc = sandbox.workspace / ".bashrc"
    assert bashrc.read_text() == ""


def test_fault_36_the_attempts_succeed_without_a_sandbox(tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    sandbox = make_sandbox("user", NativeMode.RULES, tmp_path)
    only = ["write outside", "read a secret", "truncate outside", "change a mode outside"]
    only += ["tcp to 127.0.0.1", "udp to ::1", "unix socket", "unix datagram", "abstract socket"]
    only += ["signal a process outside", "read what a process outside was called with"]
    with ExitStack() as stack:
        outside = Outside(sandbox, stack)
        given = json.dumps(outside.seen_from_inside() | {"only": only})
        done = subprocess.run(
            (*sandbox.before, sandbox.python, "-I", "-S", "-c", ATTEMPTS, given),
            cwd=sandbox.workspace,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        found = json.loads(done.stdout)
        assert [way for way in only if "rror " in found[way]] == []
        assert set(outside.was_reached()) == {"tcp", "udp", "unix", "datagram", "abstract"}
        assert outside.marker.exists()
        assert outside.sleeper.wait(10) != 0


async def test_fault_36_every_engine_passes_the_self_test(sandbox: NativeSandbox) -> None:
    if sandbox.before:
        pytest.skip("the self_test runs as whoever runs the tests: as root here")
    policy = SandboxPolicy(str(sandbox.workspace))
    sandboxed = EngineSandbox(sandbox.engine, policy, self_test=SandboxSelfTest())
    try:
        processes = LocalProcesses(sandbox.workspace, sandbox=sandboxed)
        done = await processes.run(("/bin/sh", "-c", "echo runs > here"))
        assert (done.exit_code, done.isolation) == (0, "native")
    finally:
        await sandboxed.close()
    assert (sandbox.workspace / "here").read_text() == "runs\n"
