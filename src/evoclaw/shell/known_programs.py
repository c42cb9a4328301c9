"""Known programs: which of their arguments are paths, and whether they are read or written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import PathAccess, Word, escape, literal, names


class ProgramSpec(Struct, frozen=True):
    """How a program reads its arguments; an unlisted option makes all of them uncertain."""

    operands: str = "r"
    """`r` read, `w` written, `-` no paths, `c` copied (the last one written), `m` moved."""
    flags: str = ""
    values: str = ""
    """Options whose value is not a path."""
    reads: str = ""
    writes: str = ""
    long: str = ""
    """Long options without a value."""
    skip: int = 0
    """The number of leading operands that are not paths."""
    tree: str = ""
    """Options that make it recurse into folders; `*` for always."""


_DIGESTS = ProgramSpec(flags="bctwz", long="check quiet status strict warn tag binary text zero")
_GREP = ProgramSpec(
    flags="EFGPivwxcLloqsbHhnTUZzaIrRu0123456789",
    values="emABCdDT",
    reads="f",
    long="color ignore-case recursive line-number invert-match word-regexp count quiet no-messages"
    " include exclude exclude-dir only-matching fixed-strings files-with-matches",
    skip=1,
    tree="rR",
)
_COPY = ProgramSpec("c", "abdfiHLnPpRruvxTDZ", "mogS", writes="t", long="recursive force verbose")
SPECS = {
    "cat": ProgramSpec(flags="AbeEnstTuv"),
    "tac": ProgramSpec(flags="br", values="s"),
    "head": ProgramSpec(flags="qvz0123456789", values="nc"),
    "tail": ProgramSpec(flags="fFqvz0123456789", values="ncs"),
    "wc": ProgramSpec(flags="clmwL"),
    "nl": ProgramSpec(flags="p", values="bdfhilnsvw"),
    "cut": ProgramSpec(flags="nsz", values="bcdf"),
    "paste": ProgramSpec(flags="sz", values="d"),
    "sort": ProgramSpec(
        flags="bdfgiMhnRrVcCmsuz", values="kStT", writes="o", long="unique reverse"
    ),
    "comm": ProgramSpec(flags="123z"),
    "diff": ProgramSpec(
        flags="abBcdeEHilnNpqrstTuvwyZ", values="CFILSUxX", tree="r", long="color brief"
    ),
    "cmp": ProgramSpec(flags="bls", values="in"),
    "stat": ProgramSpec(flags="Lft", values="c"),
    "ls": ProgramSpec(flags="aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ1", values="ITw", long="color"),
    "du": ProgramSpec(flags="0abcDhHklLmPsSx", values="dt"),
    "od": ProgramSpec(flags="abcdfilosxvh", values="AjNStw"),
    "fold": ProgramSpec(flags="bs", values="w"),
    "rev": ProgramSpec(),
    "base64": ProgramSpec(flags="di", values="w"),
    "readlink": ProgramSpec(flags="femnqsvz"),
    "realpath": ProgramSpec(flags="emLPqsz"),
    "file": ProgramSpec(flags="bchiklLNnprsSvz0", values="eFP"),
    "strings": ProgramSpec(flags="afoVv", values="nest"),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "b2sum", "cksum"), _DIGESTS),
    "touch": ProgramSpec("w", "acfhm", "dt", reads="r"),
    "mkdir": ProgramSpec("w", "pvZ", "m", long="parents verbose"),
    "rmdir": ProgramSpec("w", "pv"),
    "rm": ProgramSpec("w", "dfiIrRv", long="recursive force verbose no-preserve-root", tree="rR"),
    "unlink": ProgramSpec("w"),
    "truncate": ProgramSpec("w", "co", "s", reads="r"),
    "chmod": ProgramSpec("w", "cfvR", skip=1, long="recursive", tree="R"),
    "chown": ProgramSpec("w", "cfvhRHLP", skip=1, long="recursive", tree="R"),
    "chgrp": ProgramSpec("w", "cfvhRHLP", skip=1, long="recursive", tree="R"),
    "tee": ProgramSpec("w", "aip", long="append"),
    "mkfifo": ProgramSpec("w", "Z", "m"),
    "shred": ProgramSpec("w", "fuvxz", "ns"),
    "cp": _COPY,
    "mv": ProgramSpec("m", "bfinuvTZ", "S", writes="t", long="force verbose no-clobber"),
    "install": _COPY,
}
NO_PATHS = names(
    """echo printf true false : test [ pwd exit return break continue shift type sleep seq
    whoami id uname basename dirname expr yes kill wait umask times which tty logname nproc
    arch factor numfmt tr printenv trap eval exec command builtin read let set shopt unset
    export local declare typeset readonly getopts cd pushd popd dirs jobs fg bg ulimit
    mapfile readarray"""
)
TREES = names("tar zip rsync scp rg ag ack restic borg 7z cpio pax mksquashfs")
"""Programs that traverse the folders they are given, or the working folder."""
UNPACKERS = names("tar unzip rsync 7z cpio pax bsdtar patch")
"""Programs that write files whose names come from elsewhere, such as archives."""
_COMPRESSORS = names("gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 unlz4 uncompress")
_THEIR_NAMES = re.compile(
    r"-[A-Za-z]*[Jrmp]|--(remote-header-name|content-disp.*|trust-s.*|recursive|mirror|page-req.*)"
)
_BELOW = Word("**", None)
_GIT_WHOLE = {"add", "grep", "stash", "archive", "bundle", "--no-index", "-a", "-A", "-am"}
_PATHY = re.compile(r"[~/.]|.*[/]|[^-].*\.[A-Za-z][A-Za-z0-9]{0,7}$", re.DOTALL)


def touch_paths(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    """Note what a program reads and writes by its arguments."""
    if name in NO_PATHS:
        return
    spec = SPECS.get(name)
    if name == "dd":
        _dd(words, scene)
    elif name == "ln":
        _link(words, scene)
    elif spec is None:
        guess_paths(name, words, scene)
    elif not _SpecReader(name, spec, scene).read(words):
        _doubt_paths(name, spec, words, scene)


def _doubt_paths(name: str, spec: ProgramSpec, words: Sequence[Word], scene: AnalysisState) -> None:
    """Count each argument as a path: the program is known, this usage is not."""
    only_reads = spec.operands == "r" and not spec.writes
    tree = bool(spec.tree) or spec.operands in "cm"
    if tree:
        scene.place(_BELOW, PathAccess.READ, name)
    for word in words:
        for piece in pieces(word):
            scene.place(piece, PathAccess.READ, name, tree=tree)
            if not only_reads:
                scene.place(piece, PathAccess.WRITE, name, tree=tree)


def guess_paths(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    """Count every argument of an unknown program as a path."""
    tree = name in TREES or (
        name == "git" and not _GIT_WHOLE.isdisjoint([word.text for word in words])
    )
    if tree:
        scene.place(_BELOW, PathAccess.READ, name)
    if name in UNPACKERS and not _packs(words):
        scene.place(_BELOW, PathAccess.WRITE, name)
        if any((word.text or "-C").startswith(("-C", "--dir", "-d")) for word in words):
            scene.both(Word("\0", None), name)
    if name in ("curl", "wget") or name in _COMPRESSORS:
        _own_names(name, words, scene)
    for word in words:
        for piece in pieces(word):
            text = piece.text
            looks = text is None or _PATHY.match(text) is not None
            scene.place(piece, PathAccess.READ, name, tree=tree, sure=looks)
            scene.place(piece, PathAccess.WRITE, name, sure=looks)


def _own_names(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    """Files whose names a program derives from its arguments."""
    for word in words:
        text = word.text
        if text is None:
            continue
        if _THEIR_NAMES.fullmatch(text) and name in ("curl", "wget"):
            scene.place(_BELOW, PathAccess.WRITE, name)
        elif not text.startswith("-"):
            own = re.split(r"[?#]", text)[0].rstrip("/").rpartition("/")[2]
            own = own if name in ("curl", "wget") else text.rpartition(".")[0]
            scene.place(literal(own or "index.html"), PathAccess.WRITE, name, sure=False)


def _packs(words: Sequence[Word]) -> bool:
    """Whether an archive is created or listed, not extracted."""
    first = words[0].text if words else None
    return (
        first is not None
        and re.fullmatch(r"-?[A-Za-z]*[ctru][A-Za-z]*", first) is not None
        and ("x" not in first)
    )


def pieces(word: Word) -> list[Word]:
    """The possible paths in a word: itself, `--option=this`, `-othis`, `name=this`, `@this`.

    Also `unix://this`, and `this:…`, as containers are given folders and sockets.
    """
    pattern, text = word.pattern, word.text
    if text is None:
        if "=" in pattern and not pattern.startswith("\0"):
            return [word, Word(pattern.partition("=")[2], None)]
        return [word]
    if socket := _SOCKET.search(text):
        return [literal(socket[1])]
    if "://" in text:
        return []
    found: list[Word] = []
    if not text.startswith("-"):
        found.append(word)
    elif len(text) > 2 and text[1] != "-":
        found.append(literal(text[2:]))
    if "=" in text:
        found.append(literal(text.partition("=")[2]))
    if "@" in text:
        found.append(literal(text.partition("@")[2]))
    if ":" in text:
        found += [
            literal(path.partition(":")[0])
            for piece in found
            if ":" in (path := piece.text or "") and path.startswith(("/", "~", "./", "../"))
        ]
    return found


_SOCKET = re.compile(r"unix(?:-[a-z]+)?:(?://)?(/[^,]*)", re.IGNORECASE)
"""The path of a socket: `unix:///run/x`, `UNIX-CONNECT:/run/x`."""


def _dd(words: Sequence[Word], scene: AnalysisState) -> None:
    for word in words:
        key, equals, value = word.pattern.partition("=")
        if "\0" in key or not equals or (word.many and word.text is None):
            scene.both(Word("\0", None), "dd")
        elif key in ("if", "of"):
            found = Word(value, None if word.text is None else word.text.partition("=")[2])
            scene.place(found, PathAccess.READ if key == "if" else PathAccess.WRITE, "dd")


def _link(words: Sequence[Word], scene: AnalysisState) -> None:
    """Note a link as read and written: through it the target can be read and written."""
    operands = [word for word in words if not (word.text or "").startswith("-") or word.text == "-"]
    for word in operands:
        scene.both(word, "ln", tree=True)
        text = word.text
        if (
            text is not None
            and not text.startswith("/")
            and "/" in "".join(other.text or "/" for other in operands if other is not word)
        ):
            # A relative target is resolved from the folder of the link.
            scene.both(Word("\0", None), "ln", tree=True)
    if len(operands) == 1:
        _below(literal("."), operands, "ln", scene, tree=False)
    elif operands:
        _below(operands[-1], operands[:-1], "ln", scene, tree=False)
    for word in words:
        if (word.text or "").startswith("--") or "t" in (word.text or "")[1:2]:
            scene.both(Word("\0", None), "ln", tree=True)


def _below(
    target: Word, sources: Sequence[Word], name: str, scene: AnalysisState, *, tree: bool
) -> None:
    """A file that is copied into a folder keeps its name."""
    for source in sources:
        text = source.text
        if text is None:
            scene.place(target, PathAccess.WRITE, name, tree=True)
        else:
            own = text.rstrip("/").rpartition("/")[2]
            inside = f"{target.pattern}/{escape(own)}"
            known = None if target.text is None else f"{target.text}/{own}"
            scene.place(Word(inside, known), PathAccess.WRITE, name, tree=tree, sure=False)
    return


class _SpecReader:
    def __init__(self, name: str, spec: ProgramSpec, scene: AnalysisState) -> None:
        self._name, self._spec, self._scene = name, spec, scene
        self._operands: list[Word] = []
        self._tree = spec.tree == "*"
        self._target: Word | None = None
        self._found: list[tuple[Word, PathAccess]] = []
        self._pattern_given = False

    def read(self, words: Sequence[Word]) -> bool:
        """Note what is read and written; False, and nothing noted, if that is ambiguous."""
        options = True
        rest = iter(words)
        for word in rest:
            text = word.text
            if text is None and word.loose:
                if not word.pattern.startswith("--") or not self._long(word.pattern[2:]):
                    return False
                continue
            if text is None or not options or text == "-" or not text.startswith("-"):
                self._operands.append(word)
            elif text == "--":
                options = False
            elif text.startswith("--"):
                if not self._long(text[2:]):
                    return False
            elif not self._short(text[1:], rest):
                return False
        self._add_path()
        return True

    def _long(self, text: str) -> bool:
        name = text.partition("=")[0]
        if name not in self._spec.long.split():
            return False
        self._tree = self._tree or name == "recursive"
        return True

    def _short(self, letters: str, rest: Iterator[Word]) -> bool:
        spec = self._spec
        for index, letter in enumerate(letters):
            if letter in spec.tree:
                self._tree = True
            if letter in spec.flags:
                continue
            if letter not in spec.values + spec.reads + spec.writes:
                return False
            value = literal(letters[index + 1 :]) if letters[index + 1 :] else next(rest, None)
            if value is None or (value.text is None and value.many):
                return False
            self._value(letter, value)
            return True
        return True

    def _value(self, letter: str, value: Word) -> None:
        spec = self._spec
        self._pattern_given = self._pattern_given or letter in "ef"
        if letter == "t" and letter in spec.writes:
            self._target = value
        elif letter in spec.reads:
            self._found.append((value, PathAccess.READ))
        elif letter in spec.writes:
            self._found.append((value, PathAccess.WRITE))

    def _add_path(self) -> None:
        spec, scene, name = self._spec, self._scene, self._name
        for word, access in self._found:
            scene.place(word, access, name)
        operands = self._operands
        if spec.skip and not self._pattern_given:
            operands = operands[spec.skip :]
        if spec.operands in "cm":
            self._copy(operands)
            return
        access = PathAccess.WRITE if spec.operands == "w" else PathAccess.READ
        if not operands and self._tree:
            operands = [literal(".")]
        for word in operands:
            scene.place(word, access, name, tree=self._tree)
            if spec.writes and word.pattern[:1] in "*?[":
                # The name of a file may look like an option.
                scene.place(Word("\0", None), PathAccess.WRITE, name)

    def _copy(self, operands: Sequence[Word]) -> None:
        scene, name, moves = self._scene, self._name, self._spec.operands == "m"
        target = self._target or (operands[-1] if operands else None)
        sources = operands if self._target else operands[:-1]
        if name == "install" and target is not None:
            scene.place(target, PathAccess.WRITE, name)
        for source in sources:
            scene.place(source, PathAccess.READ, name, tree=True)
            if moves:
                scene.place(source, PathAccess.WRITE, name, tree=True)
        if target is not None:
            scene.place(target, PathAccess.WRITE, name, tree=target.text is None)
            _below(target, sources, name, scene, tree=True)


STARTING_PROGRAMS = names(
    """
    ack ansible ansible-playbook apt apt-get awk bash bazel bundle busybox cargo chroot cmake
    composer cpan cpio csplit ctest dash deno dnf docker dotnet dpkg ed emacs env ex expect
    find fish flock gawk gcc gdb gem git go gradle gulp gvim helm hg ionice java jest julia
    just ksh kubectl less lua m4 make man mawk meson more mvn mypy nano nawk nerdctl nice
    ninja node nohup nox npm npx nvim parallel pdm perl php pip pip3 pipx pnpm podman poetry
    psql pytest python python3 R rake rg ripgrep rsync ruby run-parts rustup scala scp screen
    script sed setsid sftp sh socat sort split sqlite3 ssh stdbuf strace su sudo svn systemd-
    run tar task taskset terraform time timeout tmux tox unshare uv uvx vi view vim vitest
    watch wget xargs yarn zip zsh
    """
)
"""Well-known programs that start other programs: by an option, a settings file, or because that is
their purpose. What they start cannot be judged."""
