"""The scripts around a command on another machine, so that nothing of it outlives the call.

A login shell, whichever it is, sees one fixed line. That line has `/bin/sh` read a script from
standard input, which names program, arguments, folder and environment. The script answers with a
mark, waits for the start signal, and from then on ends everything when its input ends: so a broken
connection ends the command too.

On Linux with a `python3`, `supervisor_program.py` does this and can prove that all processes are
dead. Elsewhere `sh` does what it can: it finds descendants, members of the session and processes
with the mark in their environment. A process that leaves all three (new session, new
parent and an empty environment) escapes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

NAMED_SIGNALS = (1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15)
"""The Linux signals that SSH has a name for."""


class RemoteCommand(Struct, frozen=True):
    """A command, checked, and where it is to run."""

    mark: str
    """An unguessable marker that starts every line of the script."""
    root: str
    folder: str
    """As requested: relative to the root, or absolute."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: int | None
    """How many bytes of input follow the start signal."""


def boot(script: bytes) -> str:
    """The line for the login shell: read a script of this length and run it."""
    return f'exec /bin/sh -c \'eval "$(head -c "$1")"\' evoclaw {len(script)}'


def probe(mark: str) -> bytes:
    """A script that prints which Python can supervise a command there, if any."""
    return f"""
for one in /usr/bin/python3 /usr/local/bin/python3 python3; do
  [ -r /proc/self/stat ] && found=$("$one" -I -S -c {shlex.quote(_VERSION)} 2>/dev/null) && break
  found=
done
printf '{mark} %s\\n' "$found"
""".encode()


def script(order: RemoteCommand, python: str) -> bytes:
    """The script that runs a command below that Python, or below `sh` if there is none."""
    path = order.env.get("PATH")
    lines = [
        f"mark={order.mark} root={shlex.quote(_plain(order.root))}",
        f"folder={shlex.quote(_plain(order.folder))} name={shlex.quote(order.argv[0])}",
        f"search={shlex.quote(path)}" if path is not None else "search=$PATH",
        f"set -- {shlex.join(order.argv[1:])}",
        _PREPARE,
    ]
    size = -1 if order.stdin is None else order.stdin
    if python:
        lines.append(
            f"exec {shlex.quote(python)} -I -S -c {shlex.quote(_supervisor())} "
            f'"$mark" {len(_variables(order))} {size} "$found" "$@"'
        )
    else:
        variables = {name: shlex.quote(value) for name, value in order.env.items()}
        pairs = {**_KEPT_VARIABLES, **variables, "EVOCLAW_CALL": "$mark"}.items()
        env = " ".join(f"{shlex.quote(name)}={value}" for name, value in pairs)
        lines.append(f'size={size}\nclean() {{ exec $apart env -i {env} "$@"; }}')
        lines.append(_SHELL)
    return "\n".join(lines).encode(errors="surrogateescape")


def word(order: RemoteCommand, python: str) -> bytes:
    """What lets the script go; only the input follows it."""
    return b"G\n" + (_variables(order) if python else b"")


def _variables(order: RemoteCommand) -> bytes:
    """The environment, visible to the supervisor only."""
    text = "\0".join(f"{name}={value}" for name, value in order.env.items())
    return text.encode(errors="surrogateescape")


def _plain(path: str) -> str:
    """A path that no command takes for an option."""
    return path if path.startswith("/") else f"./{path}"


_KEPT_VARIABLES = {
    "PATH": '"$PATH"',
    "HOME": '"${HOME:-/}"',
    "LANG": '"${LANG:-C.UTF-8}"',
    "TERM": "dumb",
}
"""The default environment of a command, in the syntax of the shell there."""

_VERSION = """
import os, sys
print(sys.executable)
sys.exit(sys.version_info < (3, 8) or not hasattr(os, "memfd_create") or "=" in sys.executable)
"""

_PREPARE = r"""
refuse() { printf '%s no %s\n' "$mark" "$1"; exit 0; }
unset CDPATH
cd -P -- "$root" 2>/dev/null || refuse root
top=$(pwd -P; printf x); top=${top%?x}
[ "$top" = / ] && top=
case $folder in
  /*) case $folder/ in "$top"/* | "$root"/*) ;; *) refuse outside ;; esac ;;
esac
if ! cd -P -- "$folder" 2>/dev/null; then
  [ -d "$folder" ] && refuse closed
  [ -e "$folder" ] && refuse file
  refuse missing
fi
here=$(pwd -P; printf x); here=${here%?x}
case $here/ in "$top"/*) ;; *) refuse outside ;; esac
found=
case $name in
  */*) found=$name ;;
  *) set -f; IFS=:
     for one in $search; do
       [ -f "${one:-.}/$name" ] && [ -x "${one:-.}/$name" ] && { found=${one:-.}/$name; break; }
     done
     unset IFS; set +f ;;
esac
[ -n "$found" ] && [ -f "$found" ] && [ -x "$found" ] || refuse program
case $found in /*) ;; *) found=$here/$found ;; esac
"""

_SHELL = r"""
if apart=$(command -v setsid); then :; else apart=; set -m 2>/dev/null; fi
start() {
  case $found in
    *=*) clean /bin/sh -c 'exec "$0" "$@"' "$found" "$@" ;;
    *) clean "$found" "$@" ;;
  esac
}
table() {
  if [ -r /proc/self/stat ]; then cat /proc/[0-9]*/stat
  else ps -A -o pid= -o ppid= -o pgid= -o stat=
  fi 2>/dev/null
}
marked() {
  [ -r /proc/self/environ ] || return 0
  grep -lsF "EVOCLAW_CALL=$mark" /proc/[0-9]*/environ |
    sed 's|^/proc/||; s|/environ$||' | tr '\n' ' '
}
victims() {
  table | awk -v top="$pid" -v also="$(marked)" '
    /\) / { one = $1; sub(/^.*\) /, ""); state = $1; above[one] = $2; group[one] = $4 }
    !/\) / && one == "" { above[$1] = $2; group[$1] = $3; state = $4; one = $1 }
    { if (state ~ /^[ZX]/) { delete above[one]; delete group[one] } one = "" }
    END {
      count = split(also, extra, " ")
      for (i = 1; i <= count; i++) if (extra[i] in above) out[extra[i]] = 1
      for (p in group) if (p == top || group[p] == top) out[p] = 1
      do {
        more = 0
        for (p in above) if (!(p in out) && (above[p] in out)) { out[p] = 1; more = 1 }
      } while (more)
      for (p in out) if (p ~ /^[0-9]+$/) print p
    }'
}
sweep() {
  tries=0
  while [ $tries -lt 80 ]; do
    seen=' '
    while :; do
      fresh=
      for one in $(victims); do case $seen in *" $one "*) ;; *) fresh="$fresh $one" ;; esac; done
      [ -n "$fresh" ] || break
      kill -STOP $fresh; seen="$seen$fresh "
    done
    [ "$seen" != ' ' ] || return 0
    kill -KILL $seen
    tries=$((tries + 1))
    [ $tries -lt 3 ] || sleep 0.05 || sleep 1
  done
}
ask() { kill -TERM $(victims); kill -CONT $(victims); }
printf '%s ready\n' "$mark"
IFS= read -r go || exit 0
exec 3<&0 4</dev/null
if [ "$size" -gt 0 ]; then
  file=${TMPDIR:-/tmp}/.evoclaw-$mark
  (umask 077; set -C; : >"$file") || exit 126
  head -c "$size" <&3 >"$file"
  [ "$(wc -c <"$file")" -eq "$size" ] && exec 4<"$file"
  code=$?
  rm -f "$file"
  [ $code -eq 0 ] || exit 126
fi
(start "$@") <&4 3<&- 4<&- &
pid=$!
exec 4<&- >/dev/null 2>&1
trap : HUP INT TERM
(while IFS= read -r word; do ask; done; sweep) <&3 &
watcher=$!
exec 3<&-
wait "$pid"; code=$?
while kill -0 "$pid"; do wait "$pid"; code=$?; done
sweep
kill "$watcher"
exit "$code"
"""

_PYTHON = r"""
import __future__, os, sys

def take(size):
    pieces = []
    while size > 0:
        pieces.append(os.read(0, min(size, 1 << 20)))
        if not pieces[-1]:
            sys.exit()
        size -= len(pieces[-1])
    return b"".join(pieces)

mark, env, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.write(1, (mark + " ready\n").encode())
if take(2) != b"G\n":
    sys.exit()
kept = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8"}
kept = {name: os.environ.get(name) or value for name, value in kept.items()}
os.environ.clear()
os.environ.update(kept, TERM="dumb")
for pair in filter(None, take(env).split(b"\0")):
    name, _, value = pair.partition(b"=")
    os.environb[name] = value
given = os.open("/dev/null", os.O_RDONLY) if size < 0 else os.memfd_create("stdin")
while size > 0:
    piece = take(min(size, 1 << 20))
    size -= len(piece)
    while piece:
        piece = piece[os.write(given, piece):]
if size == 0:
    os.lseek(given, 0, os.SEEK_SET)
control = os.dup(0)
os.dup2(given, 0)
os.close(given)
scope = {"__name__": "supervisor"}
exec(compile(SOURCE, "supervisor", "exec", __future__.annotations.compiler_flag), scope)
end_like = scope["_end_like"]

def end(status):
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in NAMED:
        # SSH has no name for this signal: report it as shells do.
        os._exit(128 + os.WTERMSIG(status))
    end_like(status)

scope["_end_like"] = end
sys.argv = ["supervisor", str(control)] + sys.argv[4:]
scope["main"]()
"""


def _supervisor() -> str:
    """The source of the supervisor program, with the prologue for a remote machine."""
    source = Path(__file__).parent.with_name("supervisor_program.py").read_text(encoding="utf-8")
    return f"SOURCE = {source!r}\nNAMED = {NAMED_SIGNALS!r}\n{_PYTHON}"
