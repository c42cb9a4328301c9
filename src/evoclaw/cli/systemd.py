"""`evoclaw systemd`: print unit files, hardened as far as sandboxes of commands allow."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, Command
from evoclaw.cli.places import data_folder
from evoclaw.core.errors import ConfigError

_UNIT = """\
# Made by `evoclaw systemd {which}{flag}`. Put it into {place}, then:
#   {command} daemon-reload && {command} enable --now {name}
[Unit]
Description=EvoClaw: {about}
Documentation=man:systemd.exec(5)
{network}StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
# It says itself when it is ready, so what waits for it does not come too early.
Type=notify
NotifyAccess=main
ExecStart={start}
{reload}WorkingDirectory={folder}
Environment={environment}
{identity}Restart=on-failure
RestartSec=2
# Runs that go on are brought to a point from which they are taken up again.
TimeoutStopSec=60
KillMode=mixed
UMask=0077
# Sandboxes put each command into a control group of its own, below ours.
Delegate=yes

# Bounds. What a model's command may touch is for its sandbox to say; these hold for all of us.
# Sandboxes of firejail and podman begin with a setuid program: with those, say NoNewPrivileges=no.
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
# A sandbox is made of namespaces and mounts, and named; the native one is of Landlock and seccomp.
SystemCallFilter=@system-service @mount sethostname seccomp
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
{bounds}# Left out because sandboxes need what it takes away: RestrictNamespaces (a sandbox is one),
# ProtectControlGroups (see Delegate), ProtectProc, ProcSubset, ProtectKernelTunables and
# ProtectKernelLogs (with a part of /proc covered, the kernel allows no new /proc inside a sandbox),
# and MemoryDenyWriteExecute (programs that compile as they run).

[Install]
WantedBy={target}
"""
_USER = """\
# ProtectSystem, PrivateTmp and their like are left out: a user's systemd would make them by a
# namespace of its own, and not every kernel lets a sandbox make another one inside of that.
"""
_SYSTEM = """\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem={protects}
{writes}PrivateTmp=yes
RemoveIPC=yes
"""


class UnitOptions(Struct, frozen=True):
    """What a unit file depends on."""

    which: str = "orchestrator"
    system: bool = False
    user: str = "evoclaw"
    folder: Path = Path()
    config: Path = Path("agent.toml")


@click.command(cls=Command)
@click.argument(
    "which",
    type=click.Choice(["orchestrator", "edge"]),
    default="orchestrator",
    help="The process to keep up  [default: orchestrator]",
)
@click.option("--system", is_flag=True, help="Write a unit of the machine, not of your user")
@click.option("--user", default="evoclaw", metavar="USER", help="Run as this user, with --system")
@click.option("--folder", type=FILE, default=Path(), metavar="FOLDER", help="Work in this folder")
@click.option(
    "--config",
    type=FILE,
    default=Path("agent.toml"),
    metavar="FILE",
    help="Run the edge of this file",
)
def systemd(which: str, *, system: bool, user: str, folder: Path, config: Path) -> int:
    """Print the unit file."""
    sys.stdout.write(unit(UnitOptions(which, system, user, folder, config), os.environ))
    return exits.OK


def unit(options: UnitOptions, env: Mapping[str, str]) -> str:
    """The unit file of the orchestrator, or of an edge."""
    is_orchestrator = options.which == "orchestrator"
    folder = options.folder.absolute()
    data = Path("/var/lib/evoclaw") if options.system else data_folder(env).absolute()
    command_line = [*_program(), *_arguments(options)]
    return _UNIT.format(
        which=options.which,
        flag=" --system" if options.system else "",
        place="/etc/systemd/system" if options.system else "~/.config/systemd/user",
        command="systemctl" if options.system else "systemctl --user",
        name=_name(options.which),
        about="the orchestrator" if is_orchestrator else "an edge",
        network="Wants=network-online.target\nAfter=network-online.target\n"
        if options.system
        else "",
        start=" ".join(_word(word) for word in command_line),
        reload="ExecReload=/bin/kill -HUP $MAINPID\n" if is_orchestrator else "",
        folder=_word(str(folder), whole_line=True),
        environment=_word(f"EVOCLAW_HOME={data}"),
        identity=f"User={options.user}\nStateDirectory=evoclaw\nStateDirectoryMode=0700\n"
        if options.system
        else "",
        bounds=_bounds(options, folder),
        target="multi-user.target" if options.system else "default.target",
    )


def _name(which: str) -> str:
    return "evoclaw.service" if which == "orchestrator" else "evoclaw-edge.service"


def _arguments(options: UnitOptions) -> list[str]:
    if options.which == "orchestrator":
        return ["up", "--no-edge", "--folder", str(options.folder.absolute())]
    return ["edge", "--config", str(options.config.absolute())]


def _bounds(options: UnitOptions, folder: Path) -> str:
    if not options.system:
        return _USER
    if options.which == "edge":
        # agent.toml names the folders of an edge; the sandbox decides which ones a command sees.
        return _SYSTEM.format(protects="full", writes="")
    return _SYSTEM.format(protects="strict", writes=f"ReadWritePaths={_path(folder)}\n")


def _program() -> list[str]:
    """The command line of this program: the script `evoclaw`, or `python -m evoclaw`."""
    found = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "evoclaw" else None
    if found is not None:
        return [str(Path(found).absolute())]
    return [sys.executable, "-m", "evoclaw"]


def _word(text: str, *, whole_line: bool = False) -> str:
    """Escape a word for systemd: specifiers, variables, quotes and spaces."""
    if any(ord(character) < 32 for character in text):
        raise ConfigError(
            f"{text!r} has control characters, which unit files do not allow; choose another name"
        )
    text = text.replace("%", "%%")
    if whole_line:
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if set(text) & set(" '\"") else text


def _path(path: Path) -> str:
    """Escape one of several paths on a line, where systemd expands no variables."""
    return _word(str(path)).replace("$$", "$")
