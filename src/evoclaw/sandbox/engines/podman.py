"""`Podman`: a container whose image is empty, with the machine's programs shown in it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from evoclaw.core.sandboxes import Confines
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import Plan, plan

IMAGE = "localhost/evoclaw-cage:1"
NAME = "--name="
MAKE = f"""set -e
podman=$1; shift
if ! "$podman" image exists {IMAGE}; then
  root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
  for name in usr etc proc dev sys tmp run var/tmp; do mkdir -p "$root/$name"; done
  chmod 755 "$root"; chmod 1777 "$root/tmp" "$root/var/tmp"
  for name in bin sbin lib lib32 lib64 libx32; do
    [ ! -L "/$name" ] || ln -s "$(readlink "/$name")" "$root/$name"
  done
  tar -C "$root" -c . | "$podman" import --quiet - {IMAGE} >/dev/null
  rm -rf "$root"; trap - EXIT
fi
exec "$podman" "$@"
"""
"""Makes the image first if it is not there: folders to mount on, and the links to programs."""


class Podman:
    """A container by podman and runc; slow to start, and alive when podman is killed."""

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
        """The program, if it is there."""
        return _find(self._program)

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        found = plan(confines, keep_root=True)
        uid, gid = found.ids
        name = f"evoclaw-{os.getpid()}-{secrets.token_hex(6)}"
        profile = Path(__file__).with_name("podman_seccomp.json")
        options = (
            *("--log-level=error", "--runtime", _find(self._runtime) or self._runtime),
            *("run", "--rm", f"{NAME}{name}", "--interactive", "--network=none", "--read-only"),
            *("--read-only-tmpfs=false", "--cap-drop=all", "--env-host", "--init=false"),
            *("--security-opt=no-new-privileges", f"--security-opt=seccomp={profile}"),
            *("--hostname=cage", "--pull=never", "--log-driver=none", f"--user={uid}:{gid}"),
            *("--pid=private", "--ipc=private", f"--workdir={cwd}", "--no-healthcheck"),
            *_limits(confines),
            *_mounts(confines, found),
        )
        made = ("/bin/sh", "-c", MAKE, "sh", self.binary() or self._program)
        return found.command((*made, *options, IMAGE, *argv))

    def ending(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that ends the container of this command line."""
        name = next(word for word in command if word.startswith(NAME)).removeprefix(NAME)
        return (self.binary() or self._program, "rm", "--force", "--ignore", "--time=0", name)


def _find(program: str) -> str:
    # Where administrators' programs are, and plain users' paths often do not lead.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def _limits(confines: Confines) -> Iterator[str]:
    yield f"--ulimit=nofile={confines.open_files}:{confines.open_files}"
    yield f"--ulimit=fsize={confines.file_size}:{confines.file_size}"
    yield f"--ulimit=data={confines.memory}:{confines.memory}"
    yield "--ulimit=core=0:0"
    yield f"--ulimit=nproc={confines.processes}:{confines.processes}"
    if os.geteuid() == 0:
        yield f"--memory={confines.memory}"
        yield f"--pids-limit={confines.processes}"
    else:
        # Without root the limits of groups are often not to be had, and are then only warned of.
        yield from ("--userns=keep-id", "--pids-limit=-1")


def _mounts(confines: Confines, found: Plan) -> Iterator[str]:
    size = confines.memory // system.FRESH_PART
    for place in ("/tmp", "/var/tmp", "/run"):
        yield f"--tmpfs={place}:rw,nosuid,nodev,mode=1777,size={size}"
    yield f"--shm-size={size}"
    yield from _bind("/usr", "/usr", may_write=False)
    for path in (*(f"/etc/{name}" for name in system.ETC), *system.PROGRAMS):
        if Path(path).exists() and not (Path(path).is_symlink() and path in system.PROGRAMS):
            yield from _bind(path, path, may_write=False)
    changed = (confines.workspace, *confines.writable)
    for path in sorted(system.shown(confines)):
        may_write = path in changed or path == confines.proxy
        if may_write or not any(system.below(path, one) for one in changed):
            yield from _bind(found.source(path), path, may_write=may_write)
    for path, may_write in system.pinned(confines):
        yield from _bind(found.source(path), path, may_write=may_write)


def _bind(source: str, place: str, *, may_write: bool) -> Iterator[str]:
    how = "" if may_write else ",readonly"
    yield f"--mount=type=bind,source={source},destination={place}{how}"
