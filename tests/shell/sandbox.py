"""Where commands that a policy let pass are really run, and watched: a sandbox with marks in it.

The same file is the process inside: it reads a line of JSON, runs what it says with bash in a fresh
folder, and answers with what was seen.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

PROGRAMS = """
bash sh cat cp mv ln tee head tail find xargs env sed awk tr base64 nice timeout nohup setsid
stdbuf sort dd touch install grep cut paste mkdir truncate sleep true false uniq split tac rev
nl od date diff comm join fold readlink dirname basename seq perl curl time
"""
HERE = str(Path(__file__).parent)
SECRET = "s3cr3t-7f1e"
RAN = "marker-ran"
LONGEST = 1.5
"""Seconds that a command may take."""


class FuzzSandbox:
    """The outer side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "ws"
        self.bin = folder / "bin"
        _furnish(self.bin, folder)
        fill(self.workspace)
        self._process = subprocess.Popen(
            [*isolated(folder), sys.executable, "-I", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.port = int(self._ask({"do": "port"})["port"])

    def run(self, command: str) -> dict[str, Any]:
        """Run a command; says what was seen: `ran`, `forbidden`, `secret`, `connected`."""
        return self._ask({"do": "run", "command": command})

    def tool(self, name: str, argument: str) -> dict[str, Any]:
        """Do what a tool would do with its one argument, in the plainest way."""
        return self._ask({"do": name, "argument": argument})

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the sandbox broke"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


def isolated(folder: Path) -> list[str]:
    """What to run the inner side with: everything read-only but its folder, no network."""
    return [
        *("bwrap", "--die-with-parent", "--unshare-all", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        # This very checkout, and the interpreter, may lie in there.
        *(part for one in (HERE, sys.prefix) for part in ("--ro-bind", one, one)),
        *(
            "--bind",
            str(folder),
            str(folder),
            "--ro-bind",
            str(folder / "bin"),
            str(folder / "bin"),
        ),
        "--",
    ]


def why_not() -> str:
    """Why there can be no sandbox here; empty if there can."""
    if shutil.which("bwrap") is None:
        return "there is no bwrap: install your system's package bubblewrap"
    probe = ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--", "true"]
    done = subprocess.run(probe, capture_output=True, check=False)
    return "" if done.returncode == 0 else f"bwrap does not work here: {done.stderr.decode()}"


def _furnish(programs: Path, folder: Path) -> None:
    programs.mkdir()
    for name in PROGRAMS.split():
        real = shutil.which(name, path="/usr/bin:/bin")
        if real is not None:
            (programs / name).symlink_to(real)
    marker = programs / "marker"
    marker.write_text(f"#!/bin/sh\n: > {folder}/{RAN}\n")
    marker.chmod(0o755)


def fill(workspace: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(workspace, ignore_errors=True)
    (workspace / "sub" / "deep").mkdir(parents=True)
    (workspace / "d").mkdir()
    (workspace / "a").write_text("one\ntwo\n")
    (workspace / "d" / "forbidden").write_text("x\n")
    (workspace / "names").write_text("forbidden\nsecret\nmarker\n")
    (workspace / "secret").write_text(SECRET + "\n")
    (workspace / "alias").symlink_to("secret")
    (workspace / "here").symlink_to(".")
    (workspace / "up").symlink_to("sub/..")
    (workspace / "dangling").symlink_to("forbidden")


def inner(folder: Path) -> None:
    """The inner side."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    listeners = [listener]
    try:
        six = socket.create_server(("::1", port), family=socket.AF_INET6)
        six.setblocking(False)
        listeners.append(six)
    except OSError:
        pass  # a machine without IPv6
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["do"] == "port":
            answer: dict[str, Any] = {"port": port}
        else:
            answer = _do(folder, asked, listeners)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _do(folder: Path, asked: dict[str, Any], listeners: list[socket.socket]) -> dict[str, Any]:
    workspace = folder / "ws"
    output = b""
    if asked["do"] == "run":
        output = _bash(folder, asked["command"])
    else:
        output = _tool(workspace, asked["do"], asked["argument"])
    answer = {
        "ran": (folder / RAN).exists(),
        "forbidden": os.path.lexists(workspace / "forbidden"),
        "secret": SECRET.encode() in output,
        "connected": any(_connected(one) for one in listeners),
    }
    (folder / RAN).unlink(missing_ok=True)
    fill(workspace)
    return answer


def _bash(folder: Path, command: str) -> bytes:
    # As bare as a shell can be: only our own programs, and a home that is the workspace.
    env = {"PATH": str(folder / "bin"), "HOME": str(folder / "ws"), "LANG": "C.UTF-8"}
    try:
        process = subprocess.Popen(
            [str(folder / "bin" / "bash"), "-c", command],
            cwd=folder / "ws",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except ValueError:
        return b""  # a NUL: no shell ever sees it
    try:
        return process.communicate(timeout=LONGEST)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def _tool(workspace: Path, name: str, argument: str) -> bytes:
    try:
        if name == "read":
            return (workspace / argument).read_bytes()
        if name == "write":
            (workspace / argument).write_text("x")
        elif name == "webfetch":
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            opener.open(argument, timeout=0.5).close()
    except (OSError, ValueError, HTTPException):
        pass  # what counts is what it did before
    return b""


def _connected(listener: socket.socket) -> bool:
    met = False
    while True:
        try:
            listener.accept()[0].close()
            met = True
        except BlockingIOError:
            return met


if __name__ == "__main__":
    inner(Path(sys.argv[1]))
