"""The folder of a git repository: what git must write there, and what makes it run programs.

Both are lists of what is harmless. A name or a setting that is not on them may make git run a
program, or may do so in a later version of git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_GIT_TEXT_BYTES = 256 << 10
"""Of a file in a repository that is checked; a longer one is taken for harmful."""

GIT_INERT_FOLDERS = frozenset(
    {
        "objects", "refs", "logs", "lfs", "reftable", "rr-cache", "sequencer", "rebase-apply",
        "rebase-merge", "NOTES_MERGE_WORKTREE",
    }
)  # fmt: skip
"""Folders of a repository that git writes and runs nothing from, if no link is in them."""
GIT_NESTED_FOLDERS = frozenset({"modules", "worktrees"})
"""Folders of a repository with the repositories of its submodules and worktrees."""
GIT_EMPTY_FOLDERS = frozenset({"branches", "remotes"})
"""Folders of a repository with settings of earlier versions of git."""
GIT_INFO_NAMES = frozenset({"exclude", "refs", "grafts", "sparse-checkout"})
GIT_CHECKED_FILES = frozenset({"config", "config.worktree", "commondir", "gitdir"})
"""Files of a repository whose content decides."""
REBASE_STEPS_FILE = "git-rebase-todo"
SAMPLE_HOOK_SUFFIX = ".sample"
_INERT_FILE = re.compile(
    r"[A-Z][A-Z_]*|index|packed-refs(\.new)?|description|shallow|locked|gc\.(pid|log)"
    r"|ADD_EDIT\.patch|sharedindex\.[0-9A-Za-z_]+|tmp_\w+|[\w.-]+\.lock|git-daemon-export-ok"
)

_ANY = "*"
HARMLESS_GIT_SETTINGS: dict[str, str] = {
    "advice": _ANY,
    "author": "name email",
    "branch": _ANY,
    "checkout": "defaultremote guess workers",
    "color": _ANY,
    "column": _ANY,
    "commit": "gpgsign verbose status cleanup",
    "committer": "name email",
    "core": "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode "
    "symlinks autocrlf eol safecrlf worktree sparsecheckout sparsecheckoutcone splitindex "
    "untrackedcache preloadindex quotepath abbrev compression loosecompression sharedrepository "
    "longpaths protecthfs protectntfs whitespace commentchar checkstat trustctime "
    "bigfilethreshold commitgraph multipackindex fsync fsyncmethod fsyncobjectfiles "
    "hidedotfiles warnambiguousrefs",
    "diff": "algorithm renames renamelimit colormoved colormovedws context indentheuristic "
    "mnemonicprefix noprefix wserrorhighlight",
    "extensions": _ANY,
    "feature": _ANY,
    "fetch": "prune prunetags recursesubmodules parallel fsckobjects unpacklimit writecommitgraph",
    "gc": "auto autodetach autopacklimit pruneexpire reflogexpire reflogexpireunreachable",
    "index": _ANY,
    "init": "defaultbranch",
    "lfs": "repositoryformatversion access locksverify",
    "log": "date decorate abbrevcommit follow",
    "maintenance": "auto strategy",
    "merge": "ff conflictstyle renames renamelimit stat log autostash",
    "pack": "threads windowmemory packsizelimit window depth compression",
    "pull": "rebase ff",
    "push": "default autosetupremote followtags recursesubmodules",
    "rebase": "autosquash autostash updaterefs stat missingcommitscheck backend",
    "receive": "denycurrentbranch denydeletes denynonfastforwards denydeletecurrent fsckobjects "
    "unpacklimit",
    "remote": "url pushurl fetch push tagopt prune prunetags mirror promisor partialclonefilter "
    "skipdefaultupdate skipfetchall",
    "rerere": "enabled autoupdate",
    "stash": "showpatch showstat showincludeuntracked",
    "status": _ANY,
    "submodule": "url active branch ignore fetchrecursesubmodules recurse update fetchjobs "
    "alternatelocation alternateerrorstrategy propagatebranches",
    "tag": "gpgsign sort forcesignannotated",
    "transfer": "fsckobjects unpacklimit hiderefs advertisesid",
    "uploadpack": "allowfilter allowanysha1inwant allowtipsha1inwant allowreachablesha1inwant "
    "hiderefs",
    "user": "name email useconfigonly",
    "worktree": "guessremote userelativepaths",
}
"""By section, the settings that make git run no program and write nowhere else."""
SUBMODULE_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})

_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\\n]|\\.)*)"\s*)?\]')
_NAME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*")


def is_inert_git_file(name: str) -> bool:
    """Whether git writes a file of this name itself, and runs nothing because of it."""
    return _INERT_FILE.fullmatch(name) is not None


class GitSetting(NamedTuple):
    """A setting of a git configuration file: `[section "middle"] name = value`."""

    section: str
    name: str
    value: str
    middle: str = ""

    @property
    def harmful(self) -> bool:
        """Whether it may make git run a program, or write elsewhere.

        `core.worktree` is not judged: where it may lead depends on the repository.
        """
        known = HARMLESS_GIT_SETTINGS.get(self.section, "")
        if known != _ANY and self.name not in known.split():
            return True
        # `ext::` and other transports are programs.
        if self.name in ("url", "pushurl") and ("::" in self.value or self.value[:1] == "-"):
            return True
        return (self.section, self.name) == ("submodule", "update") and (
            self.value not in SUBMODULE_UPDATES
        )


def git_settings(text: str) -> Iterator[GitSetting]:
    """Each setting of a git configuration file; names of sections and settings in lower case.

    Raises:
        ValueError: It cannot be read with certainty.
    """
    # Git ends a line at a line feed, and ignores a carriage return before it.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    section, middle, at = "", "", 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text[at] in "#;":
            at = _line_end(text, at)
        elif text[at] == "[":
            found = _SECTION.match(text, at)
            if found is None:
                raise ValueError("a malformed section")
            section, _, old_style = found[1].lower().partition(".")
            middle, at = found[2] or old_style, found.end()
        else:
            found = _NAME.match(text, at)
            if found is None or not section:
                raise ValueError("a malformed setting")
            at = found.end()
            value = "true"
            if text[at : at + 1] == "=":
                value, at = _value(text, at + 1)
            elif "\n" not in found[0] and text[at : at + 1] not in ("", "#", ";"):
                raise ValueError("a malformed setting")
            yield GitSetting(section, found[1].lower(), value, middle)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _value(text: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    quoted = False
    while at < len(text):
        character = text[at]
        if character == "\n":
            if quoted:
                raise ValueError("an unclosed quote")
            break
        if character == "\\":
            following = text[at + 1 : at + 2]
            if not following or following not in '\n"\\ntb':
                raise ValueError("an invalid escape")
            parts.append({"\n": "", "n": "\n", "t": "\t", "b": "\b"}.get(following, following))
            at += 2
            continue
        if character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            at = _line_end(text, at)
            continue
        else:
            parts.append(character)
        at += 1
    if quoted:
        raise ValueError("an unclosed quote")
    return "".join(parts).strip(), at


def harmful_setting(text: str) -> str:
    """The first setting of a configuration that may make git run a program; empty if none."""
    try:
        found = next((setting for setting in git_settings(text) if setting.harmful), None)
    except ValueError as problem:
        return str(problem)
    return "" if found is None else f"{found.section}.{found.name}"


def adds_harmful_setting(before: str, after: str) -> bool:
    """Whether a changed configuration has a harmful setting that it did not have before."""
    try:
        new = {setting for setting in git_settings(after) if setting.harmful}
    except ValueError:
        return True
    try:
        return bool(new - set(git_settings(before)))
    except ValueError:
        return bool(new)


def runs_commands_in_rebase(text: str) -> bool:
    """Whether the steps that are left of a rebase have a command among them."""
    return any(re.match(r"\s*(x|exec)\s", f"{line} ") for line in text.splitlines())


def link_in_git_file(text: str) -> str:
    """The folder that a `.git` file names; empty if it names none."""
    found = re.fullmatch(r"gitdir: ([^\n\0]+)\n*", text)
    return found[1] if found else ""
