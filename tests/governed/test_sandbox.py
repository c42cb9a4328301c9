"""The sandbox as a user of `evoclaw run` sees it: what commands reach, and what is reported."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.command_line import Shell, shell
from tests.support.governed_machine import (
    Given,
    audit_records,
    isolation,
    obfuscated,
    results,
    settings,
    text_of,
    turns,
    write_example_files,
)
from tests.support.processes import alive, unique_seconds

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="install the package bubblewrap"
)

PROBE = """
import os, socket, sys, urllib.error, urllib.request

def tried(name, attempt):
    try:
        print(name, "WORKED", attempt())
    except Exception as problem:
        print(name, "failed", getattr(problem, "code", type(problem).__name__))

def connect(family, kind, where):
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(where)
        one.send(b"x")
        return "connected"

port = int(sys.argv[1])
tried("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)))
tried("tcp6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", port)))
tried("abroad", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)))
tried("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)))
tried("name", lambda: socket.getaddrinfo("example.org", 80))
tried("unix", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, sys.argv[2]))
for url in sys.argv[3:]:
    tried(url, lambda: urllib.request.urlopen(url, timeout=30).status)
"""


def bash(command: str) -> Given:
    return "bash", {"command": command}


def names(place: str) -> list[str]:
    return [path.name for path in Path(place).iterdir()]


def lines(result: dict[str, Any]) -> dict[str, str]:
    """What the probe said, by what it tried."""
    told = [line.split(" ", 1) for line in text_of(result).splitlines() if " " in line]
    return {one[0]: one[1] for one in told}


def port_of(here: Shell) -> int:
    """Where somebody really listens: the model's server."""
    return urlsplit(here.env["OPENAI_BASE_URL"]).port or 0


async def run(here: Shell, *options: str) -> list[dict[str, Any]]:
    """What came of each command."""
    ran = await here.type("run", "--yes", "--json", *options, "go")
    told = list(results(ran.out).values())
    return [one for one in told if one["name"] != "read"]


async def test_a_command_sees_only_its_workspace(tmp_path: Path) -> None:
    home = tmp_path / "home"
    calls = (
        bash(obfuscated(f"cat {home}/.ssh/id_ed25519; ls -A {home} | grep -v '^.evoclaw$'; true")),
        bash(obfuscated(f"touch {home}/made {tmp_path}/made /etc/made /usr/made; true")),
        bash(obfuscated("cat /etc/shadow /proc/1/environ; ls /root; env; true")),
        bash("touch inside; id -u; ps ax | wc -l"),
        bash(obfuscated("tail -c 100 /proc/*/cmdline | tr '\\0' ' '")),
    )
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        here.env["MY_API_KEY"] = "planted-in-the-environment"
        told = await run(here)
        rows = [one for one in audit_records(here.home / ".evoclaw") if one["tool"] == "bash"]
        assert (here.workspace / "inside").stat().st_uid == here.workspace.stat().st_uid
        assert {path.name for path in here.home.iterdir()} == {".config", ".evoclaw", ".ssh"}
    places = [str(home), str(tmp_path), "/etc", "/usr"]
    assert not [place for place in places if "made" in names(place)]
    everything = "".join(text_of(one) for one in told)
    for secret in ("KEY-OF-THE-OWNER", "root:", "planted-in-the-environment", "evoclaw run"):
        assert secret not in everything
    who, seen = text_of(told[3]).split()[:2]
    assert who != "0" and int(seen) < 10
    assert {isolation(one) for one in told} <= {"bubblewrap", "native"}
    assert [isolation(one) for one in told] == [one["isolation"] for one in rows]


async def test_a_command_has_no_network_access(tmp_path: Path) -> None:
    async with shell(tmp_path, *turns(bash("sh probe.sh"))) as here:
        write_example_files(here)
        (here.workspace / "probe.py").write_text(PROBE)
        command = (
            f"python3 probe.py {port_of(here)} /run/dbus/system_bus_socket http://example.org/"
        )
        (here.workspace / "probe.sh").write_text(command)
        (told,) = await run(here)
    tried = lines(told)
    assert len(tried) == 7, text_of(told)
    assert not [name for name, what in tried.items() if what.startswith("WORKED")], tried


async def test_with_an_allowlist_the_proxy_is_the_only_egress_and_refuses_other_hosts(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, *turns(bash("sh probe.sh"))) as here:
        write_example_files(here)
        settings(here, '[network]\ncommands = ["allowed.test", "localhost"]\nports = [80]\n')
        (here.workspace / "probe.py").write_text(PROBE)
        port = port_of(here)
        refused = ("http://denied.test/", "http://169.254.169.254/", f"http://allowed.test:{port}/")
        urls = (*refused, "http://localhost/", f"http://127.0.0.1:{port}/")
        command = f"python3 probe.py {port} /run/dbus/system_bus_socket {' '.join(urls)}"
        (here.workspace / "probe.sh").write_text(command)
        (told,) = await run(here)
    tried = lines(told)
    assert not [name for name, what in tried.items() if what.startswith("WORKED")], tried
    assert {tried[url] for url in refused} == {"failed 403"}, tried


@pytest.mark.parametrize("engine", ["bubblewrap", "firejail", "podman"])
async def test_fault_35_a_missing_sandbox_engine_is_named_with_advice(
    tmp_path: Path, engine: str
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "git", "env"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    async with shell(tmp_path, *turns(bash("touch made"))) as here:
        write_example_files(here)
        settings(here, f'[sandbox]\nengine = "{engine}"\n')
        here.env["PATH"] = str(tools)
        (told,) = await run(here)
        doctor = await here.type("doctor", "--json")
        assert not (here.workspace / "made").exists()
    assert told["error"] == "sandbox_unavailable"
    assert f"install the package {engine}" in text_of(told)
    (said,) = (row for row in json.loads(doctor.out) if row["name"] == f"sandbox {engine}")
    assert f"install the package {engine}" in said["says"] and not said["ok"]
    assert "the user" not in said["says"], "a person reads it, not a model"


async def test_without_a_sandbox_commands_run_only_if_configured(tmp_path: Path) -> None:
    async with shell(tmp_path, *turns(bash("touch made; id -u"))) as here:
        write_example_files(here)
        settings(here, '[sandbox]\nengine = "none"\n')
        (told,) = await run(here)
        assert (here.workspace / "made").exists()
        (row,) = (one for one in audit_records(here.home / ".evoclaw") if one["tool"] == "bash")
        settings(here, '[sandbox]\nengine = "nothing"\n')
        wrong = await here.type("run", "--yes", "go")
        settings(here, '[sandbox]\nengine = "none"\n')
        doctor = await here.type("doctor", "--json")
    assert text_of(told).split()[0] == str(os.getuid())
    assert isolation(told) == row["isolation"]
    assert isolation(told) in ("none", "pid-namespace"), "it names no engine"
    (said,) = (one for one in json.loads(doctor.out) if one["name"] == "sandbox none")
    assert "without a sandbox" in said["says"] and not said["ok"]
    assert wrong.code == 2 and "choose one of" in wrong.err and "Traceback" not in wrong.err


async def test_background_processes_of_a_command_are_dead_after_the_run(tmp_path: Path) -> None:
    mark = unique_seconds()
    left = f"(setsid sleep {mark} &) ; (setsid nohup env -i sleep {mark} > /dev/null 2>&1 &) ; true"
    async with shell(tmp_path, *turns(bash(obfuscated(left)))) as here:
        write_example_files(here)
        await run(here)
    assert alive(mark) == []


async def test_a_workspace_with_too_many_folders_is_refused_with_advice(tmp_path: Path) -> None:
    async with shell(tmp_path, *turns(bash("touch made"))) as here:
        for name in "abcd":
            (here.workspace / name).mkdir()
        settings(here, "[sandbox]\nmax_folders = 4\n")
        (told,) = await run(here)
        doctor = await here.type("doctor", "--json")
        assert not (here.workspace / "made").exists()
    assert told["error"] == "sandbox_unavailable"
    assert "more than 4 folders" in text_of(told) and "Start EvoClaw in" in text_of(told)
    (said,) = (one for one in json.loads(doctor.out) if "more than 4 folders" in one["says"])
    assert not said["ok"] and said["name"].startswith("sandbox ")
