from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pytest

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.executors.ssh import connection as ssh
from evoclaw.executors.ssh.connection import SshConnection, SshTarget, SshUnreachable, parse_ssh_url
from evoclaw.executors.ssh.files import SshFiles
from evoclaw.executors.ssh.processes import SshProcesses
from evoclaw.tools.sets import coding
from tests.executors.test_local_files import names_in
from tests.support.processes import alive, cancelled_when_ready, unique_seconds
from tests.support.sshd import Sshd, sshd
from tests.support.tool_calls import call_of

if TYPE_CHECKING:
    from asyncssh import SFTPClient

# Not imported yet: that is for the process that runs these tests.
if find_spec("asyncssh") is None:
    pytest.skip("asyncssh is not installed", allow_module_level=True)

ODD = [
    "",
    "it's",
    'say "hi"',
    "a\nb",
    "\n",
    "$(id) `id` ${HOME}",
    "* ? [a-z]",
    "-n",
    "--",
    "~",
    "a=b",
    "!!",
    "\\",
    "%s",
    "héé 日本 🦀",
    "\udcff\udcfe",
    "tab\there",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
async def connection(server: Sshd) -> AsyncGenerator[SshConnection]:
    server.trust("host")
    async with server.connection() as made:
        yield made


@pytest.fixture
def files(connection: SshConnection, tmp_path: Path) -> SshFiles:
    return SshFiles(connection, str(tmp_path))


@pytest.fixture(params=["auto", "sh"])
def processes(
    request: pytest.FixtureRequest, connection: SshConnection, tmp_path: Path
) -> SshProcesses:
    return SshProcesses(
        connection, str(tmp_path), supervision=cast('Literal["auto", "sh"]', request.param)
    )


@pytest.fixture
def strict(connection: SshConnection, tmp_path: Path) -> SshProcesses:
    return SshProcesses(connection, str(tmp_path))


async def gone(mark: str) -> None:
    """Wait until nothing lives that carries a mark."""
    async with asyncio.timeout(30):
        while alive(mark):
            await asyncio.to_thread(os.sched_yield)


async def drafted(folder: Path) -> None:
    """Wait until a file is half-written."""
    while not any(name.startswith(".evoclaw-") for name in names_in(folder)):
        await asyncio.to_thread(os.sched_yield)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("ssh://pi@box:2222/srv/a%20b", SshTarget("box", "/srv/a b", 2222, "pi")),
        ("ssh://box/srv", SshTarget("box", "/srv")),
        ("ssh://box/~/work", SshTarget("box", "work")),
        ("ssh://box/~", SshTarget("box", ".")),
        ("ssh://[::1]:22/srv", SshTarget("::1", "/srv")),
    ],
)
def test_an_ssh_url_is_parsed_into_user_host_and_folder(url: str, target: SshTarget) -> None:
    assert parse_ssh_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "http://box/srv",
        "ssh://box",
        "ssh://box/",
        "ssh:///srv",
        "ssh://u:secret@box/srv",
        "ssh://box:99999/srv",
        "ssh://box:0/srv",
        "ssh://-oProxyCommand=x/srv",
        "ssh://box/srv?x",
    ],
)
def test_an_invalid_ssh_url_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_ssh_url(url)
    assert "secret" not in str(refused.value)


async def test_an_unknown_host_key_is_refused_with_instructions_to_trust_it(server: Sshd) -> None:
    server.trust(None)
    with pytest.raises(ConfigError) as refused:
        await server.connection().open()

    told = str(refused.value)
    assert "is unknown" in told and server.fingerprint() in told
    assert f"ssh -o UserKnownHostsFile={server.known_hosts} -p {server.port}" in told


async def test_a_missing_known_hosts_file_trusts_no_host(server: Sshd, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        await server.connection(known_hosts=tmp_path / "none").open()


@pytest.mark.parametrize("text", [b"nonsense\n", b"\xff\xfe\n"])
async def test_an_unreadable_known_hosts_file_is_reported(
    server: Sshd, tmp_path: Path, text: bytes
) -> None:
    (tmp_path / "hosts").write_bytes(text)
    with pytest.raises(ConfigError, match="hosts cannot be read"):
        await server.connection(known_hosts=tmp_path / "hosts").open()


async def test_a_changed_host_key_is_refused_and_reported_as_changed(server: Sshd) -> None:
    server.trust("other")
    with pytest.raises(ConfigError) as refused:
        await server.connection().open()

    assert "has changed" in str(refused.value)
    assert f"-R '[127.0.0.1]:{server.port}'" in str(refused.value)


async def test_a_call_to_an_untrusted_host_fails_with_permission_denied(
    server: Sshd, tmp_path: Path
) -> None:
    server.trust("other")
    with pytest.raises(ToolFailure) as refused:
        await SshFiles(server.connection(), str(tmp_path)).read("f")
    assert refused.value.kind is ErrorKind.PERMISSION_DENIED


async def test_a_refused_ssh_login_says_what_to_do(server: Sshd) -> None:
    server.trust("host")
    with pytest.raises(ConfigError, match="authorized_keys"):
        await server.connection(keys=[server.folder / "other"]).open()
    with pytest.raises(ConfigError, match="the key file .* does not exist"):
        await server.connection(keys=[server.folder / "nothing"]).open()


async def test_an_offline_host_is_reported_as_unreachable(server: Sshd, tmp_path: Path) -> None:
    away = server.connection(port=1)
    with pytest.raises(SshUnreachable):
        await away.open()
    with pytest.raises(ToolFailure) as offline:
        await SshProcesses(away, str(tmp_path)).run(["true"])
    assert offline.value.kind is ErrorKind.AGENT_OFFLINE


async def test_a_workspace_that_is_no_folder_is_a_configuration_error(
    connection: SshConnection, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(ConfigError):
            await SshFiles(connection, str(tmp_path / name)).check()
    await SshFiles(connection, str(tmp_path)).check()


async def test_a_connection_lost_between_calls_is_reopened(
    server: Sshd, files: SshFiles, strict: SshProcesses
) -> None:
    async with asyncio.timeout(20):
        await files.write("f", b"one")
        assert server.cut()
        assert await files.read("f") == b"one"
        assert server.cut()
        await files.write("f", b"two")
        assert server.cut()
        assert (await strict.run(["cat", "f"])).stdout == b"two"
        assert server.cut()
        assert [entry.path async for entry in files.walk()] == ["f"]


async def test_a_connection_lost_during_a_command_gives_outcome_unknown(
    server: Sshd, processes: SshProcesses, tmp_path: Path
) -> None:
    mark = unique_seconds()
    ready = asyncio.Event()
    command = f"echo x >> done; setsid sleep {mark} & echo ready; sleep {mark}"
    running = asyncio.create_task(
        processes.run(["bash", "-c", command], on_output=lambda _: ready.set())
    )
    async with asyncio.timeout(20):
        await ready.wait()
        server.cut()
        with pytest.raises(ToolFailure) as broke:
            await running

    assert broke.value.kind is ErrorKind.UNKNOWN
    assert "may have happened" in broke.value.message
    assert (tmp_path / "done").read_text() == "x\n"
    await gone(mark)


async def test_a_connection_lost_during_a_write_gives_outcome_unknown(
    server: Sshd, files: SshFiles, tmp_path: Path
) -> None:
    await files.write("f", b"old")
    writing = asyncio.create_task(files.write("f", b"n" * (48 << 20)))
    async with asyncio.timeout(20):
        await drafted(tmp_path)
        server.cut()
        with pytest.raises(ToolFailure) as broke:
            await writing

    assert broke.value.kind is ErrorKind.UNKNOWN
    assert (tmp_path / "f").read_bytes() == b"old"


async def test_a_cancelled_write_changes_nothing_and_leaves_no_temporary_file(
    files: SshFiles, tmp_path: Path
) -> None:
    await files.write("f", b"old")
    writing = asyncio.create_task(files.write("f", b"n" * (48 << 20)))
    async with asyncio.timeout(20):
        await drafted(tmp_path)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    assert names_in(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


async def test_a_connection_stuck_in_an_abandoned_call_is_replaced(
    connection: SshConnection,
    files: SshFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssh, "SFTP_CHECK_TIMEOUT_S", 0.2)
    await files.write("f", b"x")
    os.mkfifo(tmp_path / "pipe")

    async def stuck(sftp: SFTPClient) -> object:
        return await sftp.open(str(tmp_path / "pipe"), "rb")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await connection.once(stuck)
    async with asyncio.timeout(30):
        assert await files.read("f") == b"x"
    # Lets the server that waits for a writer go.
    os.close(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))


async def test_a_symlinked_workspace_is_accepted_under_both_paths(
    connection: SshConnection, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    files = SshFiles(connection, str(tmp_path / "link"))
    processes = SshProcesses(connection, str(tmp_path / "link"))
    await files.write(str(tmp_path / "link" / "f"), b"x")

    assert (await files.stat(str(tmp_path / "real" / "f"))).path == "f"
    for name in ("link", "real"):
        done = await processes.run(["pwd", "-P"], cwd=str(tmp_path / name))
        assert done.stdout.decode() == f"{tmp_path / 'real'}\n"


async def test_arbitrary_file_contents_and_names_round_trip(
    files: SshFiles, tmp_path: Path
) -> None:
    data = os.urandom(5_000_000)
    await files.write("b\udcff\n", data)

    assert await files.read("b\udcff\n") == data
    assert [entry.path async for entry in files.walk()] == ["b\udcff\n"]
    assert (tmp_path / "b\udcff\n").read_bytes() == data


async def test_a_write_keeps_the_private_mode_of_a_file(files: SshFiles, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o600)
    await files.write("key", b"new")
    await files.write("empty", b"")

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_text() == "new"
    assert await files.read("empty") == b""


async def test_remove_deletes_files_but_no_symlink_folder_or_outside_path(
    files: SshFiles, tmp_path: Path
) -> None:
    await files.write("a/f", b"x")
    (tmp_path / "link").symlink_to("a/f")
    (tmp_path / "up").symlink_to("a")
    (tmp_path / "etc").symlink_to("/etc")
    for path, kind in (
        ("link", ErrorKind.PERMISSION_DENIED),
        ("up/f", ErrorKind.PERMISSION_DENIED),
        ("etc/hostname", ErrorKind.PERMISSION_DENIED),
        ("../x", ErrorKind.PERMISSION_DENIED),
        ("a", ErrorKind.INVALID_PARAMS),
        ("a/f/x", ErrorKind.INVALID_PARAMS),
        ("a/g", ErrorKind.NOT_FOUND),
        ("b/g", ErrorKind.NOT_FOUND),
    ):
        with pytest.raises(ToolFailure) as refused:
            await files.remove(path)
        assert refused.value.kind is kind, path

    await files.remove("a/f")
    assert names_in(tmp_path / "a") == []


async def test_errors_do_not_reveal_whether_an_outside_path_exists(
    files: SshFiles, tmp_path: Path
) -> None:
    (tmp_path.parent / "there").mkdir(exist_ok=True)
    (tmp_path / "out").symlink_to("..")
    said: list[ErrorKind] = []
    for path in ("out/there/x", "out/nowhere/x", "../there/x", "../nowhere/x"):
        with pytest.raises(ToolFailure) as refused:
            await files.read(path)
        said.append(refused.value.kind)

    assert set(said) == {ErrorKind.PERMISSION_DENIED}


async def test_fault_38_a_folder_swapped_for_a_symlink_during_a_walk_is_not_entered(
    files: SshFiles, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "z").touch()
    found: list[str] = []
    async for entry in files.walk():
        found.append(entry.path)
        if entry.path == "a":
            (tmp_path / "a").rmdir()
            (tmp_path / "a").symlink_to("/etc")

    assert found == ["a", "z"]


async def test_fault_41_arguments_and_variables_arrive_unchanged(
    processes: SshProcesses, tmp_path: Path
) -> None:
    show = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    async with asyncio.timeout(20):
        done = await processes.run(["python3", "-c", show, *ODD])
        names = await processes.run(["printenv", "ODD"], env={"ODD": "|".join(ODD[:-2])})

    assert done.stdout == b"|".join(map(os.fsencode, ODD)), done.stderr
    assert names.stdout == ("|".join(ODD[:-2]) + "\n").encode(errors="surrogateescape")


async def test_a_working_folder_may_have_any_name(processes: SshProcesses, tmp_path: Path) -> None:
    for name in ("-P", "it's $(id)", "new\nline\n", "a'b"):
        (tmp_path / name).mkdir()
        async with asyncio.timeout(30):
            done = await processes.run(["pwd", "-P"], cwd=name)
        assert done.stdout.decode() == f"{tmp_path / name}\n"


async def test_a_symlink_cannot_start_a_command_outside_the_workspace(
    processes: SshProcesses, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "ok").symlink_to("in")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "file").touch()
    async with asyncio.timeout(20):
        assert (await processes.run(["pwd"], cwd="ok")).exit_code == 0
        assert (await processes.run(["pwd"], cwd=str(tmp_path / "in"))).exit_code == 0
        for folder, kind in (
            ("out", ErrorKind.PERMISSION_DENIED),
            ("in/../..", ErrorKind.PERMISSION_DENIED),
            ("/etc", ErrorKind.PERMISSION_DENIED),
            ("/proc/self/root", ErrorKind.PERMISSION_DENIED),
            ("file", ErrorKind.INVALID_PARAMS),
            ("", ErrorKind.INVALID_PARAMS),
        ):
            with pytest.raises(ToolFailure) as refused:
                await processes.run(["pwd"], cwd=folder)
            assert refused.value.kind is kind, folder


async def test_a_remote_command_gets_only_the_given_environment(
    connection: SshConnection, tmp_path: Path
) -> None:
    processes = SshProcesses(connection, str(tmp_path), env={"GREETING": "hello"})
    async with asyncio.timeout(30):
        done = await processes.run(["env"], env={"ONCE": "1", "LANG": "C", "PATH": "/usr/bin:/bin"})

    assert sorted(done.stdout.decode().splitlines()) == [
        "GREETING=hello",
        f"HOME={Path.home()}",
        "LANG=C",
        "ONCE=1",
        "PATH=/usr/bin:/bin",
        "TERM=dumb",
    ]


@pytest.mark.parametrize(
    ("command", "code"),
    [("kill -9 $$", -9), ("kill -SEGV $$", -11), ("exit 137", 137), ("kill -BUS $$", 128 + 7)],
)
async def test_death_by_signal_is_distinguished_from_an_exit_code(
    strict: SshProcesses, command: str, code: int
) -> None:
    assert (await strict.run(["bash", "-c", command])).exit_code == code


async def test_ssh_isolation_is_reported_as_none(processes: SshProcesses) -> None:
    assert (await processes.run(["true"])).isolation == "none (ssh)"


async def test_fault_28_endless_output_is_stopped_at_a_byte_cap(
    connection: SshConnection, tmp_path: Path
) -> None:
    processes = SshProcesses(connection, str(tmp_path), max_bytes=4 << 20)
    mark = unique_seconds()
    async with asyncio.timeout(20):
        with pytest.raises(ToolFailure) as stopped:
            await processes.run(["yes", mark])

    assert stopped.value.kind is ErrorKind.TOO_LARGE and mark in stopped.value.message
    assert alive(mark) == []


async def test_fault_32_grandchildren_in_other_sessions_do_not_survive_a_cancel(
    processes: SshProcesses,
) -> None:
    mark = unique_seconds()
    command = f"setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &); echo ready"

    await cancelled_when_ready(cast("LocalProcesses", processes), f"{command}; sleep {mark}")
    assert alive(mark) == []


async def test_fault_32_with_remote_python_even_a_process_without_environment_dies(
    strict: SshProcesses,
) -> None:
    mark = unique_seconds()
    hidden = f"(setsid env -i sleep {mark} >/dev/null 2>&1 &); echo ready"

    await cancelled_when_ready(cast("LocalProcesses", strict), f"{hidden}; sleep {mark}")
    assert alive(mark) == []
    async with asyncio.timeout(30):
        assert (await strict.run(["bash", "-c", hidden])).stdout == b"ready\n"
    assert alive(mark) == []


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; echo ready; while :; do sleep {0}; done",
        "echo ready; kill -STOP $$; sleep {0}",
        "sleep {0} & kill -STOP $!; echo ready; wait",
        "for i in $(seq 200); do sleep {0} & done; echo ready; wait",
    ],
    ids=["ignores TERM", "stops itself", "stopped child", "two hundred"],
)
async def test_fault_33_processes_that_ignore_sigterm_are_killed(
    processes: SshProcesses, command: str
) -> None:
    mark = unique_seconds()

    await cancelled_when_ready(cast("LocalProcesses", processes), command.format(mark))
    assert alive(mark) == []


async def test_fault_32_background_processes_end_with_the_command(
    processes: SshProcesses,
) -> None:
    mark = unique_seconds()
    async with asyncio.timeout(30):
        done = await processes.run(["bash", "-c", f"setsid sleep {mark} & sleep {mark} & echo x"])

    assert (done.exit_code, done.stdout, done.stderr) == (0, b"x\n", b"")
    assert alive(mark) == []


KILLED = """
import asyncio, sys
from evoclaw.executors.ssh import connection as ssh
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.executors.ssh.connection import SshConnection
from evoclaw.executors.ssh.processes import SshProcesses

async def main(port, user, key, known_hosts, root, mark):
    connection = SshConnection(
        "127.0.0.1", port=int(port), user=user, keys=[key], known_hosts=known_hosts
    )
    command = f"setsid sleep {mark} & echo ready; sleep {mark}"
    await SshProcesses(connection, root).run(
        ["bash", "-c", command], on_output=lambda text: print(text, flush=True)
    )

asyncio.run(main(*sys.argv[1:]))
"""


async def test_remote_commands_die_when_the_local_process_is_killed(
    server: Sshd, tmp_path: Path
) -> None:
    server.trust("host")
    mark = unique_seconds()
    where = (str(server.port), server.user, str(server.key), str(server.known_hosts))
    ours = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, *where, str(tmp_path), mark),
        stdout=asyncio.subprocess.PIPE,
    )
    assert ours.stdout is not None
    async with asyncio.timeout(20):
        try:
            assert await ours.stdout.readline() == b"ready\n"
        finally:
            ours.kill()
            await ours.wait()
    await gone(mark)


async def test_login_shell_output_is_not_mixed_into_command_output(tmp_path: Path) -> None:
    chatty = 'ForceCommand echo welcome; echo oops >&2; eval "$SSH_ORIGINAL_COMMAND"'
    folder = tmp_path / "sshd"
    folder.mkdir()
    with sshd(folder, chatty) as server:
        async with server.connection() as connection:
            done = await SshProcesses(connection, str(tmp_path)).run(["echo", "hi"])

    assert (done.stdout, done.stderr) == (b"hi\n", b"")


async def test_an_sftp_only_account_refuses_commands_and_still_writes_files(tmp_path: Path) -> None:
    folder = tmp_path / "sshd"
    folder.mkdir()
    with sshd(folder, "ForceCommand internal-sftp") as server:
        async with server.connection() as connection:
            with pytest.raises(ToolFailure) as refused:
                await SshProcesses(connection, str(tmp_path)).run(["echo", "hi"])
            await SshFiles(connection, str(tmp_path)).write("f", b"x")

    assert "nothing was done" in refused.value.message.lower()
    assert (tmp_path / "f").read_bytes() == b"x"


async def test_every_file_tool_and_bash_work_over_ssh(
    files: SshFiles, strict: SshProcesses, tmp_path: Path
) -> None:
    tools = {bound.name: bound for bound in coding()}
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "noise.log").write_text("needle\n")
    setup = "git init -qb main; git config user.name n; git config user.email n@example.org"
    async with asyncio.timeout(20):
        assert (await strict.run(["bash", "-c", setup])).exit_code == 0
    patch = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-needle = 2\n+needle = 3\n"
    steps: list[tuple[str, dict[str, JSON], str]] = [
        ("write", {"path": "src/a.py", "content": "needle = 1\n"}, ""),
        ("edit", {"path": "src/a.py", "old_string": "= 1", "new_string": "= 2"}, ""),
        ("read", {"path": "src/a.py"}, "needle = 2"),
        ("glob", {"pattern": "**/*.py"}, "src/a.py"),
        ("grep", {"pattern": "needle"}, "src/a.py"),
        ("bash", {"command": "cat src/a.py"}, "needle = 2"),
        ("git_commit", {"message": "one", "paths": ["src/a.py"]}, "one"),
        ("apply_patch", {"patch": f"{patch}*** End Patch\n"}, "src/a.py"),
        ("git_status", {}, "src/a.py"),
        ("git_diff", {}, "+needle = 3"),
        ("git_log", {}, "one"),
        ("git_branch", {}, "main"),
    ]
    for name, arguments, expected in steps:
        found = tools.pop(name)
        executor = LocalExecutor([found], files=files, exec=strict)
        async with asyncio.timeout(20):
            result = await executor.execute(call_of(found, **arguments), lambda _: None)
        text = "".join(block.text for block in result.blocks if isinstance(block, TextBlock))
        assert expected in text and "noise.log" not in text, name
    assert not tools, "a tool is not tried over SSH"
