"""A standalone program, run in a sandbox: a loopback port that leads to the egress proxy's socket.

`relay_program.py SOCKET PROGRAM ARGUMENT...`. Programs know proxies by host and port, not by a
socket in the file system. It listens, starts the command with the proxy in its environment,
passes bytes until the command ends, and exits as the command did. Standard library only.
"""

import os
import select
import signal
import socket
import sys

READ_BYTES = 64 << 10
MAX_CONNECTIONS = 256
"""Concurrent connections."""


class RelayEnd:
    """One end of a relayed connection."""

    def __init__(self, side: socket.socket) -> None:
        self.side, self.number = side, side.fileno()
        self.other: RelayEnd = self
        self.waiting = b""
        """Bytes that this end has not accepted yet."""
        self.ended = self.shut = False


def main() -> None:
    """Listen, start the command, relay until it has ended."""
    path, argv = sys.argv[1], sys.argv[2:]
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    listening.setblocking(False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _woken)
    command = _start(argv, f"http://127.0.0.1:{listening.getsockname()[1]}")

    def forward(number: int, _frame: object) -> None:
        os.kill(command, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    _end_like(_relay(listening, path, woken, command))


def _woken(_number: int, _frame: object) -> None:
    """Do nothing: the signal only has to wake `poll`."""


def _start(argv: list[str], proxy: str) -> int:
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    environment = os.environ | dict.fromkeys(names, proxy)
    environment |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    defaults = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
    try:
        return os.posix_spawnp(argv[0], argv, environment, setsigdef=defaults)
    except OSError as problem:
        os.write(2, f"{argv[0]}: {problem.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def _relay(listening: socket.socket, path: str, woken: int, command: int) -> int:
    """Pass bytes until the command ends; its status."""
    ends: dict[int, RelayEnd] = {}
    while True:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if len(ends) < 2 * MAX_CONNECTIONS:
            poll.register(listening, select.POLLIN)
        for end in ends.values():
            # Nothing is read for an end that has not accepted what it was sent.
            wanted = 0 if end.ended or end.other.waiting else select.POLLIN
            poll.register(end.number, wanted | (select.POLLOUT if end.waiting else 0))
        for number, event in poll.poll():
            if number == woken:
                os.read(woken, 4096)
                ended, status = os.waitpid(command, os.WNOHANG)
                if ended:
                    return status
            elif number == listening.fileno():
                _accept(listening, path, ends)
            elif number in ends:
                _move(ends[number], event, ends)


def _accept(listening: socket.socket, path: str, ends: dict[int, RelayEnd]) -> None:
    try:
        near, _ = listening.accept()
    except OSError:
        return
    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(path)
    except OSError:
        near.close()
        far.close()
        return
    inner, outer = RelayEnd(near), RelayEnd(far)
    inner.other, outer.other = outer, inner
    for end in (inner, outer):
        end.side.setblocking(False)
        ends[end.number] = end


def _move(end: RelayEnd, event: int, ends: dict[int, RelayEnd]) -> None:
    other = end.other
    try:
        if event & select.POLLOUT:
            end.waiting = end.waiting[end.side.send(end.waiting) :]
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and not other.waiting:
            piece = b"" if end.ended else end.side.recv(READ_BYTES)
            end.ended = end.ended or not piece
            other.waiting = piece
        for side in (end, other):
            if side.other.ended and not side.waiting and not side.shut:
                side.shut = True
                side.side.shutdown(socket.SHUT_WR)
        over = end.ended and other.ended and not end.waiting and not other.waiting
    except BlockingIOError:
        return
    except OSError:
        over = True
    if over:
        for side in (end, other):
            ends.pop(side.number, None)
            side.side.close()


def _end_like(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # The first process of a namespace cannot kill itself by a signal.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
