"""What a native sandbox is good for, how it ends, and when it is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.native.engine import PACKAGE_FOLDER, NativeEngine, refusal
from evoclaw.sandbox.engines.native.program.kernel import EXIT_REFUSED
from evoclaw.sandbox.engines.native.seccomp import (
    ARCHITECTURES,
    SYSCALL_NUMBERS,
    NativeMode,
    call_filter,
)
from tests.sandbox.engines.native.sandboxes import KINDS, NativeSandbox, make_sandbox
from tests.support.waiting import until_sync

PATIENCE = 10.0


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(kind))
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> NativeSandbox:
    who, how = request.param
    return make_sandbox(who, how, tmp_path)


@pytest.fixture(params=["root", "user"])
def spaced(request: pytest.FixtureRequest, tmp_path: Path) -> NativeSandbox:
    return make_sandbox(request.param, NativeMode.NAMESPACES, tmp_path)


def test_a_command_works_in_its_workspace(sandbox: NativeSandbox) -> None:
    script = "mkdir -p a/b && echo text > a/b/c && mv a/b/c a/d && cat a/d && rm -r a/b && pwd"
    done = sandbox.shell(script)
    assert done.stdout.splitlines() == ["text", str(sandbox.workspace)], done.stderr
    assert (sandbox.workspace / "a" / "d").read_text() == "text\n"


def test_created_files_belong_to_the_calling_user(sandbox: NativeSandbox) -> None:
    assert sandbox.shell("echo text > made; mkdir folder").returncode == 0
    assert {one.stat().st_uid for one in sandbox.workspace.iterdir()} == {sandbox.uid}


def test_pipes_loops_and_temporary_files_work(sandbox: NativeSandbox) -> None:
    script = (
        'file=$(mktemp) && seq 3 | while read -r n; do echo "$n" >> "$file"; done; '
        'sort -r "$file" | tr "\\n" " "; cat < /dev/null; head -c 4 /dev/urandom | wc -c'
    )
    assert sandbox.shell(script).stdout.split() == ["3", "2", "1", "4"]


def test_temporary_files_are_removed_afterwards(sandbox: NativeSandbox) -> None:
    done = sandbox.shell("mktemp")
    assert done.returncode == 0
    assert not Path(done.stdout.strip()).exists()


def test_a_temporary_folder_is_removed_without_following_symlinks(tmp_path: Path) -> None:
    sandbox = make_sandbox("user", NativeMode.RULES, tmp_path)
    kept = sandbox.workspace / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    sandbox.give(kept, kept / "file")
    script = f'cd "$TMPDIR" && mkdir -p a/b && ln -s {kept} a/link && touch a/b/c && pwd'
    done = sandbox.shell(script)
    assert done.returncode == 0
    assert not Path(done.stdout.strip()).exists()
    assert (kept / "file").read_text() == "stays"


def test_a_readable_folder_can_be_read_and_not_changed(sandbox: NativeSandbox) -> None:
    folder = sandbox.place / "readable"
    folder.mkdir()
    (folder / "text").write_text("to be read")
    folder.chmod(0o777)
    (folder / "text").chmod(0o666)
    script = f"cat {folder}/text; echo more >> {folder}/text; touch {folder}/new; rm {folder}/text"
    done = sandbox.shell(script, readable=(str(folder),))
    assert done.stdout == "to be read"
    assert [one.name for one in folder.iterdir()] == ["text"]
    assert (folder / "text").read_text() == "to be read"


def test_an_extra_writable_folder_can_be_changed(sandbox: NativeSandbox) -> None:
    folder = sandbox.place / "further"
    folder.mkdir()
    sandbox.give(folder)
    assert sandbox.shell(f"echo text > {folder}/new", writable=(str(folder),)).returncode == 0
    assert (folder / "new").read_text() == "text\n"


def test_the_environment_is_passed_unchanged(sandbox: NativeSandbox) -> None:
    done = sandbox.run("/usr/bin/env", env={"GIVEN": "as it is"})
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "GIVEN=as it is" in done.stdout
    assert names <= {"GIVEN", "PATH", "TMPDIR", "LC_CTYPE"}


def test_the_sandbox_exits_like_its_command(sandbox: NativeSandbox) -> None:
    assert sandbox.shell("exit 7").returncode == 7
    assert sandbox.shell("kill -SEGV $$").returncode == -signal.SIGSEGV
    assert sandbox.shell("kill -KILL $$").returncode == -signal.SIGKILL
    assert sandbox.run("no-such-program").returncode == 127


def test_the_command_does_not_inherit_ignored_sigpipe(sandbox: NativeSandbox) -> None:
    """Python ignores that signal; a command must not inherit it."""
    done = sandbox.run("/bin/sh", "-c", "(yes; echo $? >&2) | head -n 1")
    assert done.stderr.strip() == str(128 + signal.SIGPIPE)


def test_resource_limits_are_enforced(sandbox: NativeSandbox) -> None:
    code = (
        "import json, os, errno\n"
        "found = {}\n"
        "try:\n    bytearray(200 << 20)\nexcept MemoryError:\n    found['memory'] = True\n"
        "try:\n    open('big', 'wb').write(bytes(3 << 20))\n"
        "except OSError as e:\n    found['size'] = e.errno == errno.EFBIG\n"
        "files = []\n"
        "try:\n    [files.append(open('/dev/null')) for _ in range(100)]\n"
        "except OSError as e:\n    found['files'] = e.errno == errno.EMFILE\n"
        "[f.close() for f in files]\n"
        "children = []\n"
        "try:\n"
        "    for _ in range(60):\n"
        "        pid = os.fork()\n"
        "        if not pid:\n            os.read(r, 1) if (r := 0) else None; os._exit(0)\n"
        "        children.append(pid)\n"
        "except OSError as e:\n    found['processes'] = e.errno == errno.EAGAIN\n"
        "print(json.dumps(found))\n"
    )
    done = sandbox.run(
        sandbox.python,
        *("-I", "-S", "-c", code),
        memory=100 << 20,
        file_size=1 << 20,
        open_files=50,
        processes=20,
    )
    assert json.loads(done.stdout) == {
        "memory": True,
        "size": True,
        "files": True,
        "processes": True,
    }, done.stderr
    assert (sandbox.workspace / "big").stat().st_size == 1 << 20


def test_all_processes_die_with_the_launcher(spaced: NativeSandbox) -> None:
    name = f"31{os.getpid()}"
    script = f"setsid sleep {name} & setsid sh -c 'sleep {name} & wait' & echo ready; wait"
    process = subprocess.Popen(
        spaced.command("/bin/sh", "-c", script), stdout=subprocess.PIPE, cwd="/"
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        until_sync(lambda: len(_sleeping(name)) == 2)
        process.kill()
        process.wait(PATIENCE)
    until_sync(lambda: _sleeping(name) == [])


def test_background_processes_end_with_the_command(spaced: NativeSandbox) -> None:
    name = f"32{os.getpid()}"
    assert spaced.shell(f"setsid sleep {name} > /dev/null 2>&1 & exit 0").returncode == 0
    until_sync(lambda: _sleeping(name) == [])


def test_sigterm_is_forwarded_to_the_command(sandbox: NativeSandbox) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    process = subprocess.Popen(
        sandbox.command("/bin/sh", "-c", script), stdout=subprocess.PIPE, cwd="/"
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.stdout.readline() == b"bye\n"
        assert process.wait(PATIENCE) == 3


async def test_local_processes_run_and_cancel_a_native_sandbox(
    spaced: NativeSandbox,
) -> None:
    processes = LocalProcesses(spaced.workspace)
    done = await processes.run(spaced.command("/bin/sh", "-c", "echo made > here; pwd"))
    assert done.stdout.decode().strip() == str(spaced.workspace), done.stderr
    assert (spaced.workspace / "here").read_text() == "made\n"
    name = f"33{os.getpid()}"
    command = spaced.command("/bin/sh", "-c", f"setsid sleep {name} & wait")
    running = asyncio.create_task(processes.run(command))
    await asyncio.to_thread(until_sync, lambda: len(_sleeping(name)) == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _sleeping(name) == []


def test_missing_protected_paths_cannot_be_created(spaced: NativeSandbox) -> None:
    protected = tuple(f"{spaced.workspace}/{one}" for one in (".envrc", ".config/fish/"))
    script = (
        "echo out > .envrc; mkdir -p .config/fish; echo out > .config/fish/config.fish; "
        "mv .config away; rm -rf .config .envrc; ln -sf /bin/true .envrc; echo fine > new"
    )
    spaced.shell(script, protected=protected)
    assert (spaced.workspace / ".envrc").read_text() == ""
    assert not (spaced.workspace / ".envrc").is_symlink()
    assert list((spaced.workspace / ".config" / "fish").iterdir()) == []
    assert (spaced.workspace / "new").read_text() == "fine\n"


def test_a_protected_path_that_is_a_symlink_is_refused(spaced: NativeSandbox) -> None:
    (spaced.workspace / "real").mkdir()
    (spaced.workspace / ".git").symlink_to("real")
    done = spaced.shell("echo ran", protected=(f"{spaced.workspace}/.git",))
    assert done.returncode == EXIT_REFUSED
    assert "link" in refusal(done.returncode, done.stderr.encode())
    assert done.stdout == ""


def test_without_namespaces_a_workspace_with_protected_paths_is_refused(tmp_path: Path) -> None:
    sandbox = make_sandbox("user", NativeMode.RULES, tmp_path)
    done = sandbox.shell("echo ran", protected=(f"{sandbox.workspace}/.git/hooks",))
    assert done.returncode == EXIT_REFUSED
    assert "mount namespace" in refusal(done.returncode, done.stderr.encode())
    assert done.stdout == ""
    assert sandbox.shell("echo ran", protected=("/etc/passwd",)).stdout == "ran\n"


def test_nothing_runs_when_the_sandbox_cannot_be_built(sandbox: NativeSandbox) -> None:
    command = list(sandbox.command("/bin/sh", "-c", f"touch {sandbox.place}/ran"))
    at = next(i for i, one in enumerate(command) if one.startswith("filter="))
    command[at] = "filter=" + "00" * 8
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, cwd="/")
    assert done.returncode == EXIT_REFUSED
    assert refusal(done.returncode, done.stderr).startswith("enter the seccomp filter")
    assert not (sandbox.place / "ran").exists()


def test_a_missing_workspace_is_refused(sandbox: NativeSandbox) -> None:
    within = SandboxPolicy(str(sandbox.place / "nowhere"))
    command = sandbox.engine.command(within, ["/bin/true"], "/")
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, cwd="/")
    assert done.returncode == EXIT_REFUSED
    assert "nowhere" in refusal(done.returncode, done.stderr)


def test_a_root_owned_workspace_is_refused_when_uids_cannot_be_mapped(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    engine = NativeEngine(NativeMode.NAMESPACES)
    if why := engine.missing():
        pytest.skip(why)
    command = engine.command(SandboxPolicy(str(tmp_path)), ["/bin/true"], str(tmp_path))
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *command)
    done = subprocess.run(without, capture_output=True, check=False, timeout=PATIENCE, cwd="/")
    assert done.returncode == EXIT_REFUSED
    assert "chown" in refusal(done.returncode, done.stderr)


def test_egress_needs_a_network_namespace(tmp_path: Path) -> None:
    sandbox = make_sandbox("user", NativeMode.RULES, tmp_path)
    done = sandbox.shell("echo ran", proxy=str(tmp_path / "socket"))
    assert done.returncode == EXIT_REFUSED
    assert "network namespace" in refusal(done.returncode, done.stderr.encode())


def test_the_evoclaw_package_is_protected_inside_the_workspace() -> None:
    engine = NativeEngine()
    if why := engine.missing():
        pytest.skip(why)
    command = engine.command(
        SandboxPolicy(str(PACKAGE_FOLDER.parent)), ["/bin/true"], str(PACKAGE_FOLDER.parent)
    )
    assert f"protect={PACKAGE_FOLDER}/" in command


@pytest.mark.parametrize(
    "policy",
    [
        SandboxPolicy("relative"),
        SandboxPolicy("/a/../b"),
        SandboxPolicy("/"),
        SandboxPolicy("/a", writable=("/",)),
        SandboxPolicy("/a", readable=("/",)),
        SandboxPolicy(str(PACKAGE_FOLDER)),
        SandboxPolicy(str(PACKAGE_FOLDER / "core")),
    ],
)
def test_invalid_policy_paths_are_refused(policy: SandboxPolicy) -> None:
    engine = NativeEngine()
    if why := engine.missing():
        pytest.skip(why)
    with pytest.raises(ConfigError):
        engine.command(policy, ["/bin/true"], policy.workspace)


def test_the_launcher_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.append(sys.argv[1]); "
        "import evoclaw.sandbox.engines.native.program.launcher; "
        "print(*(n for n in sys.modules if n.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        (sys.executable, "-I", "-S", "-c", code, str(PACKAGE_FOLDER.parent)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert {name.partition(".")[0] for name in done.stdout.split()} <= {"evoclaw", "__main__"}
    assert len(done.stdout.split()) < 16


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("how", NativeMode)
def test_a_seccomp_filter_jumps_only_forward_and_terminates(machine: str, how: NativeMode) -> None:
    code = call_filter(how, network=False, machine=machine)
    steps = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(steps) < 4096
    for at, step in enumerate(steps):
        kind, yes, no = int.from_bytes(step[:2], "little"), step[2], step[3]
        if kind & 7 == 5:
            assert at + 1 + max(yes, no) < len(steps)
    assert steps[-1][:2] == b"\x06\x00"


def test_syscall_numbers_match_the_kernel_headers() -> None:
    checked = 0
    for column, path in enumerate(
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
    ):
        if not Path(path).exists():
            continue
        pairs = re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)\b", Path(path).read_text())
        known = {name: int(number) for name, number in pairs}
        for name, numbers in SYSCALL_NUMBERS.items():
            if name in known:
                assert numbers[column] == known[name], name
                checked += 1
    if not checked:
        pytest.skip("needs the kernel's headers (install linux-libc-dev)")
    assert checked > 80


def test_an_unknown_cpu_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match="riscv64"):
        call_filter(NativeMode.RULES, network=False, machine="riscv64")


def _sleeping(name: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{name}\0".encode():
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


def test_without_user_namespaces_the_rules_mode_is_used(tmp_path: Path) -> None:
    sandbox = make_sandbox("user", NativeMode.RULES, tmp_path)
    # A user namespace in which no further one may be made, and nobody has any rights.
    forbidden = (
        ("unshare", "--user", "--map-current-user", "--keep-caps", "/bin/sh", "-c")
        + ('echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh")
        + ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all")
    )
    code = (
        "import sys; from evoclaw.sandbox.engines.native.engine import NativeEngine; "
        "print(NativeEngine(python=sys.argv[1]).how())"
    )
    done = subprocess.run(
        (*sandbox.before, *forbidden, sandbox.python, "-S", "-c", code, sandbox.python),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "max_user_namespaces" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"user namespaces cannot be forbidden here: {done.stderr}")
    assert done.stdout.strip() == NativeMode.RULES, done.stderr
    command = sandbox.command("/bin/true")
    spaced = [one.replace("how=rules", "how=namespaces") for one in command[len(sandbox.before) :]]
    refused = subprocess.run(
        (*sandbox.before, *forbidden, *spaced), capture_output=True, timeout=PATIENCE, check=False
    )
    assert refusal(refused.returncode, refused.stderr).startswith("make namespaces")
