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

PIECE = 64 << 10
MOST = 256
"""Connections at once."""


class End:
    """One side of a passage."""

    def __init__(self, side: socket.socket) -> None:
        self.side, self.number = side, side.fileno()
        self.other: End = self
        self.waiting = b""
        """Bytes that this side has not taken yet."""
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
    """Only there so that the signal wakes us."""


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
    ends: dict[int, End] = {}
    while True:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if len(ends) < 2 * MOST:
            poll.register(listening, select.POLLIN)
        for end in ends.values():
            # Nothing is read for a side that has not taken what it has.
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


def _accept(listening: socket.socket, path: str, ends: dict[int, End]) -> None:
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
    one, two = End(near), End(far)
    one.other, two.other = two, one
    for end in (one, two):
        end.side.setblocking(False)
        ends[end.number] = end


def _move(end: End, event: int, ends: dict[int, End]) -> None:
    other = end.other
    try:
        if event & select.POLLOUT:
            end.waiting = end.waiting[end.side.send(end.waiting) :]
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and not other.waiting:
            piece = b"" if end.ended else end.side.recv(PIECE)
            end.ended = end.ended or not piece
            other.waiting = piece
        for one in (end, other):
            if one.other.ended and not one.waiting and not one.shut:
                one.shut = True
                one.side.shutdown(socket.SHUT_WR)
        over = end.ended and other.ended and not end.waiting and not other.waiting
    except BlockingIOError:
        return
    except OSError:
        over = True
    if over:
        for one in (end, other):
            ends.pop(one.number, None)
            one.side.close()


def _end_like(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # As the first process of a namespace it cannot be killed by itself.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
