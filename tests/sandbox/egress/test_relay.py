"""From inside a real sandbox: the egress proxy is the one way out, and it is a narrow one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.egress.relay_command import relay_command
from evoclaw.sandbox.engines.native.engine import NativeEngine
from evoclaw.sandbox.engines.native.seccomp import NativeMode
from tests.support.sites import ANSWER, PATIENCE, open_gateway, site
from tests.support.waiting import until

Sandboxed = Callable[[Sequence[str], str], tuple[str, ...]]

ASK = """
import json, socket, sys, urllib.request
found = {}
for url in sys.argv[1:3]:
    try:
        found[url] = urllib.request.urlopen(url, timeout=30).read().decode()
    except urllib.error.HTTPError as problem:
        found[url] = f"{problem.code} {problem.read().decode()}"
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for port in (int(sys.argv[3]), 53):
        with socket.socket(socket.AF_INET, kind) as direct:
            direct.settimeout(2)
            try:
                direct.connect(("127.0.0.1", port))
                direct.send(b"out")
                direct.recv(1)
                found[f"{kind} {port}"] = "reached"
            except OSError:
                pass
try:
    found["name"] = str(socket.getaddrinfo("good.test", 80))
except OSError:
    pass
with open("/proc/net/dev") as file:
    found["devices"] = sorted(l.split(":")[0].strip() for l in file if ":" in l)
print(json.dumps(found))
"""


def _bubblewrap(_folder: Path) -> Sandboxed:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("needs bubblewrap (install bubblewrap)")

    def sandboxed(argv: Sequence[str], socket: str) -> tuple[str, ...]:
        system = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        # The interpreter may lie in there.
        python = ("--ro-bind", sys.prefix, sys.prefix)
        alone = ("--unshare-all", "--die-with-parent")
        return (bwrap, *system, *python, "--bind", socket, socket, *alone, *argv)

    return sandboxed


def _native(folder: Path) -> Sandboxed:
    engine = NativeEngine(NativeMode.NAMESPACES)
    if why := engine.missing():
        pytest.skip(why)

    def sandboxed(argv: Sequence[str], socket: str) -> tuple[str, ...]:
        return engine.command(SandboxPolicy(str(folder), proxy=socket), argv, str(folder))

    return sandboxed


@pytest.fixture(params=[_bubblewrap, _native], ids=["bubblewrap", "native"])
def sandboxed(request: pytest.FixtureRequest, tmp_path: Path) -> Sandboxed:
    return request.param(tmp_path)


async def run(*argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    async with asyncio.timeout(3 * PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_fault_61_only_the_allowed_host_is_reached_and_only_through_the_proxy(
    sandboxed: Sandboxed,
) -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        good, bad = f"http://good.test:{server.port}/", f"http://denied.test:{server.port}/"
        ask = (sys.executable, "-I", "-S", "-c", ASK, good, bad, str(server.port))
        code, out, err = await run(
            *sandboxed(relay_command(ask, way.gateway.socket), way.gateway.socket)
        )
        assert code == 0, err
        found = json.loads(out)
        assert found.pop(good) == "hello"
        assert found.pop(bad).startswith("403 'denied.test' was not contacted")
        assert found == {"devices": ["lo"]}
        assert len(server.requests) == 1
        hosts = {
            connection.host: connection.refused == ""
            for connection in await way.wait_for_reports(2)
        }
        assert hosts == {"good.test": True, "denied.test": False}


async def test_curl_uses_the_egress_proxy_without_options(sandboxed: Sandboxed) -> None:
    if shutil.which("curl", path="/usr/bin:/bin") is None:
        pytest.skip("needs curl (install curl)")
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        script = (
            f"curl -sS http://good.test:{server.port}/a; echo; "
            f"curl -sSp http://good.test:{server.port}/b; echo; "
            f"curl -sS http://denied.test:{server.port}/; "
            f"curl -sS --noproxy '*' http://127.0.0.1:{server.port}/ || echo no direct way"
        )
        argv = relay_command(("/bin/sh", "-c", script), way.gateway.socket)
        _, out, _ = await run(*sandboxed(argv, way.gateway.socket))
        lines = out.splitlines()
        assert lines[:2] == ["hello", "hello"]
        assert "denied.test" in lines[2]
        assert lines[3] == "no direct way"
        assert [one.split(b" ")[1] for one in server.requests] == [b"/a", b"/b"]


async def test_large_concurrent_downloads_pass_the_relay_intact(sandboxed: Sandboxed) -> None:
    body = bytes(range(256)) * 40_000
    answer = ANSWER.replace(b"Content-Length: 5", f"Content-Length: {len(body)}".encode())
    answer = answer.removesuffix(b"hello") + body
    async with site(answer) as server, open_gateway("good.test", ports=[server.port]) as way:
        code = (
            "import hashlib, sys, urllib.request as u\n"
            "from concurrent.futures import ThreadPoolExecutor as Pool\n"
            "get = lambda _: hashlib.sha256(u.urlopen(sys.argv[1]).read()).hexdigest()\n"
            "print(*set(Pool(4).map(get, range(8))))"
        )
        url = f"http://good.test:{server.port}/"
        argv = relay_command((sys.executable, "-I", "-S", "-c", code, url), way.gateway.socket)
        _, out, err = await run(*sandboxed(argv, way.gateway.socket))
        assert out.strip() == hashlib.sha256(body).hexdigest(), err


async def test_the_relay_exits_like_its_command() -> None:
    assert (await run(*relay_command(("/bin/sh", "-c", "exit 7"), "/nowhere")))[0] == 7
    killed = await run(*relay_command(("/bin/sh", "-c", "kill -SEGV $$"), "/nowhere"))
    assert killed[0] == -signal.SIGSEGV
    assert (await run(*relay_command(("no-such-program",), "/nowhere")))[0] == 127


async def test_the_relay_forwards_sigterm_to_its_command() -> None:
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    process = await asyncio.create_subprocess_exec(
        *relay_command(("/bin/sh", "-c", script), "/nowhere"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"ready\n"
        await until(lambda: _catches(process.pid, signal.SIGTERM))
        process.terminate()
        assert await process.stdout.readline() == b"bye\n"
        assert await process.wait() == 3


def _catches(pid: int, number: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


async def test_without_a_proxy_socket_requests_fail_instead_of_hanging() -> None:
    code = "import urllib.request as u; u.urlopen('http://good.test/', timeout=30)"
    done = await run(*relay_command((sys.executable, "-I", "-S", "-c", code), "/nowhere"))
    assert done[0] == 1
    assert "timed out" not in done[2]
