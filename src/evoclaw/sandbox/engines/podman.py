"""`Podman`: a container with an empty image and the machine's programs mounted read-only."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import LaunchPlan, plan_launch

IMAGE_NAME = "localhost/evoclaw-sandbox:1"
NAME_OPTION = "--name="
MAKE_IMAGE_SCRIPT = f"""set -e
podman=$1; shift
if ! "$podman" image exists {IMAGE_NAME}; then
  root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
  for name in usr etc proc dev sys tmp run var/tmp; do mkdir -p "$root/$name"; done
  chmod 755 "$root"; chmod 1777 "$root/tmp" "$root/var/tmp"
  for name in bin sbin lib lib32 lib64 libx32; do
    [ ! -L "/$name" ] || ln -s "$(readlink "/$name")" "$root/$name"
  done
  tar -C "$root" -c . | "$podman" import --quiet - {IMAGE_NAME} >/dev/null
  rm -rf "$root"; trap - EXIT
fi
exec "$podman" "$@"
"""
"""Makes the image if it is missing: folders to mount on, and the links to programs."""

PROFILE_DESCRIPTOR = 9
"""Where podman, started as root, finds its seccomp profile."""


class Podman:
    """A container by podman and runc; slow to start, and it survives when podman is killed."""

    name = "podman"

    def __init__(self, program: str = "podman", runtime: str = "runc") -> None:
        """Take the names or paths of the programs."""
        self._program, self._runtime = program, runtime

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it."""
        if not self.binary():
            return "podman is not installed (no program 'podman'): install the package podman"
        if not _find(self._runtime):
            return "podman needs runc here (no program 'runc'): install the package runc"
        return ""

    def binary(self) -> str:
        """The path of the program; empty if it is not installed."""
        return _find(self._program)

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        found = plan_launch(policy, keep_root=True)
        uid, gid = found.ids
        name = f"evoclaw-{os.getpid()}-{secrets.token_hex(6)}"
        profile = str(Path(__file__).with_name("podman_seccomp.json"))
        if found.uid is not None:
            # The staging folder may hide the file: podman reads it from a descriptor.
            text = Path(profile).read_text()
            found = msgspec.structs.replace(found, files={str(PROFILE_DESCRIPTOR): text})
            profile = f"/proc/self/fd/{PROFILE_DESCRIPTOR}"
        options = (
            *("--log-level=error", "--runtime", _find(self._runtime) or self._runtime),
            *(
                "run",
                "--rm",
                f"{NAME_OPTION}{name}",
                "--interactive",
                "--network=none",
                "--read-only",
            ),
            *("--read-only-tmpfs=false", "--cap-drop=all", "--env-host", "--init=false"),
            *("--security-opt=no-new-privileges", f"--security-opt=seccomp={profile}"),
            *("--hostname=sandbox", "--pull=never", "--log-driver=none", f"--user={uid}:{gid}"),
            *("--pid=private", "--ipc=private", f"--workdir={cwd}", "--no-healthcheck"),
            *_limits(policy),
            *_mounts(policy, found),
        )
        made = ("/bin/sh", "-c", MAKE_IMAGE_SCRIPT, "sh", self.binary() or self._program)
        return found.command((*made, *options, IMAGE_NAME, *argv))

    def end_command(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that removes the container of this command line."""
        name = next(word for word in command if word.startswith(NAME_OPTION)).removeprefix(
            NAME_OPTION
        )
        return (self.binary() or self._program, "rm", "--force", "--ignore", "--time=0", name)


def _find(program: str) -> str:
    # The PATH of ordinary users often lacks the sbin folders.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def _limits(policy: SandboxPolicy) -> Iterator[str]:
    yield f"--ulimit=nofile={policy.open_files}:{policy.open_files}"
    yield f"--ulimit=fsize={policy.file_size}:{policy.file_size}"
    yield f"--ulimit=data={policy.memory}:{policy.memory}"
    yield "--ulimit=core=0:0"
    yield f"--ulimit=nproc={policy.processes}:{policy.processes}"
    if os.geteuid() == 0:
        yield f"--memory={policy.memory}"
        yield f"--pids-limit={policy.processes}"
    else:
        # Without root, cgroup limits are often unavailable, and podman then only warns.
        yield from ("--userns=keep-id", "--pids-limit=-1")


def _mounts(policy: SandboxPolicy, found: LaunchPlan) -> Iterator[str]:
    size = policy.memory // system.FRESH_MEMORY_DIVISOR
    for folder in ("/tmp", "/var/tmp", "/run"):
        yield f"--tmpfs={folder}:rw,nosuid,nodev,mode=1777,size={size}"
    yield f"--shm-size={size}"
    yield from _bind("/usr", "/usr", may_write=False)
    for path in (*(f"/etc/{name}" for name in system.ETC_NAMES), *system.PROGRAM_FOLDERS):
        if Path(path).exists() and not (Path(path).is_symlink() and path in system.PROGRAM_FOLDERS):
            yield from _bind(path, path, may_write=False)
    changed = (policy.workspace, *policy.writable)
    for path in sorted(system.shown_paths(policy)):
        may_write = path in changed or path == policy.proxy
        if may_write or not any(system.is_below(path, folder) for folder in changed):
            yield from _bind(found.source(path), path, may_write=may_write)
    for path in policy.devices:
        yield f"--device={path}"
    for path, may_write in system.pinned_paths(policy):
        yield from _bind(found.source(path), path, may_write=may_write)


def _bind(source: str, target: str, *, may_write: bool) -> Iterator[str]:
    how = "" if may_write else ",readonly"
    yield f"--mount=type=bind,source={source},destination={target}{how}"
