"""Interpreters: shell code is analysed, code in other languages only noted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import PathAccess, Word, names

SHELLS = frozenset({"bash", "sh", "dash", "ash", "ksh", "mksh", "rbash"})
_OTHERS = re.compile(
    r"(python|pypy|perl|ruby|php|lua|node|nodejs)[0-9.]*|deno|bun|luajit|Rscript|julia|tclsh|wish"
    r"|zsh|fish|csh|tcsh|nu|pwsh|elvish|osh|xonsh|guile|racket|sbcl|ghci?|scala|groovy|jshell|irb"
)
ALWAYS = names(
    """vim vi nvim view ex ed emacs gdb lldb expect m4 osascript at batch crontab su runuser
    script screen tmux watch parallel flock systemd-run chroot unshare nsenter strace ltrace
    perf valgrind bwrap firejail dbus-run-session xvfb-run setpriv prlimit numactl cgexec
    entr run-parts start-stop-daemon ssh-agent fakeroot proot catchsegv rlwrap socat sshpass
    torsocks proxychains unbuffer nsjail setarch linux32 linux64 i386 x86_64 newgrp sg
    pkexec gosu su-exec capsh source . ld.so"""
)
_BY_OPTION = {
    "tar": r"--to-c.*|--checkpoint-a.*|-[A-Za-z]*[IF].*|--use-c.*|--rsh.*|--info-s.*|--new-v.*"
    r"|--rmt.*",
    "rsync": r"-[A-Za-z]*e.*|--rsh.*|--rsync-path.*",
    "scp": r"-[A-Za-z]*[SoF].*",
    "sftp": r"-[A-Za-z]*[SoFDb].*",
    "ssh": r"-[A-Za-z]*[oFE].*",
    "sort": r"--co.*",
    "split": r"--fil.*",
    "rg": r"--pre.*|--hostname-bin.*",
    "zip": r"-[A-Za-z]*T.*|--unzip-command.*",
    "man": r"-[A-Za-z]*[PH].*|--pager.*|--html.*",
    "make": r"--eval.*|-[A-Za-z]*[fEC].*|--file.*|--makefile.*|SHELL=.*",
    "gmake": r"--eval.*|-[A-Za-z]*[fEC].*|--file.*|--makefile.*|SHELL=.*",
    "curl": r"-[A-Za-z]*K.*|--config.*",
    "wget": r"--use-askpass.*|-[A-Za-z]*e.*|--execute.*|--config.*",
    "env": r"-[A-Za-z]*[SC].*|--split.*|--chdir.*",
    "fd": r"-[A-Za-z]*[xX].*|--exec.*",
    "fdfind": r"-[A-Za-z]*[xX].*|--exec.*",
    "git": r"-c.*|--config-env.*|--exec.*|--upload-p.*|--receive-p.*|-x.*|--ext.*|-O.*|--open-f.*"
    r"|bisect|filter-branch|foreach|difftool|mergetool|instaweb|config|alias|--extcmd.*|ext::.*"
    r"|--t(e.*|=.*)?",
    "cargo": r"--config.*|--use-shell.*",
}
_BY_OPTION_COMPILED: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.DOTALL) for name, pattern in _BY_OPTION.items()
}
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk", "original-awk"})
_SED_PLAIN = re.compile(r"[0-9,$~+ ]*!?[pdqQ=DPnNgGhHx]?")
_SED_CHANGE = re.compile(r"[0-9,$]*s([/|,#@!:%_])(.*)", re.DOTALL)


@lru_cache(256)
def is_interpreter(name: str) -> bool:
    """Whether a program runs code in another language than a shell's."""
    return _OTHERS.fullmatch(name) is not None


def is_code(name: str, words: Sequence[Word]) -> bool:
    """Whether the arguments of a program other than a shell have code, or a program to run."""
    if name in ALWAYS:
        return True
    if is_interpreter(name):
        return _interprets(name, words)
    if name in _AWKS:
        return _awk(words)
    if name in ("sed", "gsed"):
        return _sed(words)
    pattern = _BY_OPTION_COMPILED.get(name)
    if pattern is None:
        return False
    for word in words:
        text = word.text
        if word.loose if text is None else pattern.fullmatch(text) is not None:
            return True
    return False


def _interprets(name: str, words: Sequence[Word]) -> bool:
    first = words[0].text if words else None
    if first is None:
        return True
    if first in ("-V", "-v", "--version", "--help"):
        return False
    if name.startswith("python") and first == "-m" and len(words) > 1:
        return words[1].text is None
    return first.startswith("-")


def _awk(words: Sequence[Word]) -> bool:
    program: Word | None = None
    rest = iter(words)
    for word in rest:
        text = word.text
        if text is None or not text.startswith("-"):
            program = word
            break
        if re.fullmatch(r"-[Fv]", text):
            next(rest, None)
        elif not re.match(r"-[Fv]", text):
            return True
    if program is None or program.text is None:
        return True
    text = program.text.replace("||", "")
    if re.search(r"system|getline|@|ARGV|ARGC|PROCINFO|\bFS\s*=.*\bsystem|close|fflush", text):
        return True
    return "print" in text and any(sign in text for sign in ">|")


def _sed(words: Sequence[Word]) -> bool:
    scripts: list[str | None] = []
    operands: list[Word] = []
    rest = iter(words)
    for word in rest:
        text = word.text
        if text in ("-e", "--expression"):
            following = next(rest, None)
            scripts.append(following.text if following else None)
        elif text is not None and re.fullmatch(r"-[nErsuz]+|-[nErsuz]*i(\.\w+)?|--in-place", text):
            continue
        elif text is not None and text.startswith("-"):
            return True
        else:
            operands.append(word)
    if not scripts:
        scripts = [operands[0].text if operands else None]
    return not all(script is not None and _harmless_sed(script) for script in scripts)


def _harmless_sed(script: str) -> bool:
    if _SED_PLAIN.fullmatch(script):
        return True
    found = _SED_CHANGE.fullmatch(script)
    if found is None or "\n" in script:
        return False
    parts = re.split(rf"(?<!\\){re.escape(found[1])}", found[2])
    return len(parts) == 3 and re.fullmatch(r"[gpiI0-9]*", parts[2]) is not None


def shell_code(
    name: str, words: Sequence[Word], stdin: str | None, scene: AnalysisState
) -> tuple[str, str] | None:
    """The code that a shell runs, and the reason if it is unknown: one of the two is empty.

    None if the shell runs nothing.
    """
    index = 0
    code = False
    while index < len(words):
        text = words[index].text
        if text is None:
            return "", f"the input of {name} is known only at run time"
        if text in ("--norc", "--noprofile", "--posix", "--login", "--"):
            index += 1
            continue
        if text in ("--version", "--help"):
            return None
        if not re.fullmatch(r"[-+][A-Za-z]+", text):
            break
        if re.search(r"[^cefhlmnpstuvxBEP]", text[1:]) or text.startswith("+"):
            return "", f"{name} {text} is not analysed"
        code = code or "c" in text
        index += 1
    if not code:
        if index < len(words) and words[index].text != "-":
            scene.place(words[index], PathAccess.READ, name)
            return "", ""
        return (stdin, "") if stdin is not None else ("", f"{name} reads its commands from input")
    if index >= len(words) or words[index].text is None:
        return "", f"the code for {name} is known only at run time"
    return words[index].text or ":", ""
