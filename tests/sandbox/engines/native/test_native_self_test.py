"""What a native cage holds in: every way out is tried from inside and watched from outside."""

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

from evoclaw.core.sandboxes import Confines
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.native.seccomp import How
from evoclaw.sandbox.sandbox import EngineCage
from evoclaw.sandbox.self_test import Canary
from tests.sandbox.engines.native.sandboxes import AS_NOBODY, KINDS, Cage, make_cage

ATTEMPTS = Path(__file__).with_name("attempts.py").read_text()
PASSWORD = "correct-horse-battery"
REACHES_NOBODY = "signal everybody"
"""The kernel calls it done even when it was allowed for nobody: the one outside must live."""


class Outside:
    """What is to be found outside of a cage, and whether anybody found it."""

    def __init__(self, cage: Cage, stack: ExitStack) -> None:
        place = cage.place / "outside"
        place.mkdir()
        place.chmod(0o777)
        self.secret, self.marker = place / "secret", place / "marker"
        self.secret.write_text("the secret")
        self.secret.chmod(0o666)
        cage.give(self.secret)
        self.time = self.secret.stat().st_mtime
        before = AS_NOBODY if cage.uid != os.geteuid() else ()
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
def cage(request: pytest.FixtureRequest, tmp_path: Path) -> Cage:
    who, how = request.param
    return make_cage(who, how, tmp_path)


@pytest.fixture
def outside(cage: Cage) -> Iterator[Outside]:
    with ExitStack() as stack:
        yield Outside(cage, stack)


def _furnished(cage: Cage) -> tuple[str, ...]:
    """A workspace with what may not be changed in it; where that cannot be, without."""
    if cage.engine.how() is How.RULES:
        return ()
    git = cage.workspace / ".git"
    hooks = git / "hooks"
    hooks.mkdir(parents=True)
    hook = hooks / "post-commit"
    hook.write_text("as it was")
    cage.give(git, hooks, hook)
    return (str(hooks), str(cage.workspace / ".bashrc"))


def _lending(cage: Cage) -> str:
    """A program of root's that lends its rights to whoever runs it."""
    program = shutil.which("id", path="/usr/bin:/bin")
    assert program is not None
    lending = cage.workspace / "lending"
    shutil.copy(program, lending)
    lending.chmod(0o4755 if os.geteuid() == 0 else 0o755)
    return str(lending)


def test_fault_36_nothing_gets_out_of_a_native_cage(cage: Cage, outside: Outside) -> None:
    protected = _furnished(cage)
    read, write = os.pipe()
    os.write(write, b"inherited")
    given = outside.seen_from_inside() | {"descriptor": read, "setuid": _lending(cage)}
    done = cage.run(
        cage.python,
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
    hooks = cage.workspace / ".git" / "hooks"
    assert [one.name for one in hooks.iterdir()] == ["post-commit"]
    assert (hooks / "post-commit").read_text() == "as it was"
    bashrc = cage.workspace / ".bashrc"
    assert bashrc.read_text() == ""


def test_fault_36_the_attempts_succeed_where_there_is_no_cage(tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    cage = make_cage("user", How.RULES, tmp_path)
    only = ["write outside", "read a secret", "truncate outside", "change a mode outside"]
    only += ["tcp to 127.0.0.1", "udp to ::1", "unix socket", "unix datagram", "abstract socket"]
    only += ["signal a process outside", "read what a process outside was called with"]
    with ExitStack() as stack:
        outside = Outside(cage, stack)
        given = json.dumps(outside.seen_from_inside() | {"only": only})
        done = subprocess.run(
            (*cage.before, cage.python, "-I", "-S", "-c", ATTEMPTS, given),
            cwd=cage.workspace,
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


async def test_fault_36_the_canary_of_every_engine_finds_no_way_out(cage: Cage) -> None:
    if cage.before:
        pytest.skip("the canary runs as whoever runs the tests: as root here")
    confines = Confines(str(cage.workspace))
    caged = EngineCage(cage.engine, confines, prover=Canary())
    try:
        processes = LocalProcesses(cage.workspace, cage=caged)
        done = await processes.run(("/bin/sh", "-c", "echo sung > here"))
        assert (done.exit_code, done.isolation) == (0, "native")
    finally:
        await caged.close()
    assert (cage.workspace / "here").read_text() == "sung\n"
