"""Wrappers (`sudo`, `env`, `timeout`, `xargs`, `find`): the commands that they run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import ANY_WORD, PathAccess, Unreadable, Word, escape, literal

_ASSIGNMENT = re.compile(r"([^=\s-][^=]*)=(.*)", re.DOTALL)


class WrapperSpec(Struct, frozen=True):
    """How a wrapper reads its arguments; unlisted options make the command unreadable."""

    flags: str = ""
    values: str = ""
    long: str = ""
    """Long options without a value, or with the value after `=`."""
    skip: int = 0
    """The number of operands before the program."""
    assigns: bool = False
    """`NAME=value` may come before the program."""
    adds: bool = False
    """Whether it appends words of its own."""


_BARE = WrapperSpec()
WRAPPERS = {
    "nohup": _BARE,
    "busybox": _BARE,
    "toybox": _BARE,
    "builtin": _BARE,
    "command": WrapperSpec("p"),
    "exec": WrapperSpec("cl", "a"),
    "nice": WrapperSpec("0123456789", "n", "adjustment"),
    "ionice": WrapperSpec("t", "cn"),
    "setsid": WrapperSpec("cfw", long="fork wait ctty"),
    "stdbuf": WrapperSpec(values="ioe", long="input output error"),
    "time": WrapperSpec("pvqa", "f"),
    "timeout": WrapperSpec(
        "v", "ks", "preserve-status foreground signal kill-after verbose", skip=1
    ),
    "env": WrapperSpec("i0v", "u", "ignore-environment null unset debug", assigns=True),
    "sudo": WrapperSpec(
        "EHnkSbAP", "ugpCT", "preserve-env non-interactive user group", assigns=True
    ),
    "doas": WrapperSpec("n", "u"),
    "taskset": WrapperSpec("c", skip=1),
    "chrt": WrapperSpec("bfior", skip=1),
    "xargs": WrapperSpec(
        "0prtx", "dELnPs", "null no-run-if-empty max-args max-procs max-lines verbose delimiter", 0,
        adds=True,
    ),
}  # fmt: skip


def unwrap(name: str, words: Sequence[Word], scene: AnalysisState) -> list[Word]:
    """The words of the command that a wrapper runs; empty if it runs none."""
    if name == "xargs":
        return _xargs(words, scene)
    if name == "command" and any(word.text in ("-v", "-V") for word in words[:1]):
        return []
    wrapper = WRAPPERS[name]
    return _after_options(name, wrapper, list(words), scene)


def _after_options(
    name: str, wrapper: WrapperSpec, words: list[Word], scene: AnalysisState
) -> list[Word]:
    index, skipped = 0, 0
    while index < len(words):
        text = words[index].text
        if text is None:
            break
        if text.startswith("-") and len(text) > 1 and text != "--" and not skipped:
            if name == "sudo" or (name == "env" and re.match(r"-\w*[iu]|--[iu]", text)):
                scene.assign("HOME", None)
            taken = _option(name, wrapper, text)
            if any(word.many for word in words[index + 1 : index + taken]):
                raise Unreadable(f"what {name} runs is known only at run time")
            index += taken
        elif text == "--" and not skipped:
            wrapper = WrapperSpec(skip=wrapper.skip, assigns=wrapper.assigns)
            index += 1
        elif wrapper.assigns and (found := _ASSIGNMENT.fullmatch(text)):
            scene.assign(found[1], None)
            index += 1
        elif skipped < wrapper.skip:
            skipped += 1
            index += 1
        else:
            break
    return words[index:]


def _option(name: str, wrapper: WrapperSpec, text: str) -> int:
    """The number of words that an option takes."""
    if text.startswith("--"):
        option, equals, _ = text[2:].partition("=")
        if option not in wrapper.long.split():
            raise Unreadable(f"{name} {text} is not analysed")
        takes = option in ("adjustment", "signal", "kill-after", "user", "group", "unset") or (
            option.startswith("max-") or option in ("delimiter", "input", "output", "error")
        )
        return 2 if takes and not equals else 1
    for index, letter in enumerate(text[1:], 2):
        if letter in wrapper.values:
            return 1 if text[index:] else 2
        if letter not in wrapper.flags:
            raise Unreadable(f"{name} {text} is not analysed")
    return 1


def _xargs(words: Sequence[Word], scene: AnalysisState) -> list[Word]:
    rest, replaced = list(words), ""
    kept: list[Word] = []
    while rest and (text := rest[0].text) is not None and text.startswith("-"):
        if text[:2] in ("-a", "-I"):
            value = literal(text[2:]) if text[2:] else (rest[1] if len(rest) > 1 else ANY_WORD)
            del rest[: 1 if text[2:] else 2]
            if text[1] == "a":
                scene.place(value, PathAccess.READ, "xargs")
            elif value.text:
                replaced = value.text
            else:
                raise Unreadable("xargs -I without a plain text is not analysed")
            continue
        count = _option("xargs", WRAPPERS["xargs"], text)
        if any(word.many for word in rest[1:count]):
            raise Unreadable("what xargs runs is known only at run time")
        kept, rest = [*kept, *rest[:count]], rest[count:]
    if not rest:
        return [literal("echo"), ANY_WORD]
    if replaced:
        return [_replace(word, replaced) for word in rest]
    return [*rest, ANY_WORD]


def _replace(word: Word, mark: str, by: str = "\0") -> Word:
    escaped = escape(mark)
    if escaped in word.pattern:
        return Word(word.pattern.replace(escaped, by), None)
    # Unquoted braces that are not a list stay literal.
    return Word(word.pattern.replace(mark, by), None) if mark in word.pattern else word


_WATCHED = re.compile(r"-[A-Za-z]*?([xs])(.*)|--(exec|shell)(?:=(.*))?", re.DOTALL)


def watched_code(words: Sequence[Word]) -> list[str]:
    """The shell commands that `cargo watch` runs whenever a file changes."""
    codes: list[str] = []
    texts = [word.text for word in words]
    for index, text in enumerate(texts):
        if text is None:
            raise Unreadable("what cargo watch runs is known only at run time")
        if text == "--":
            break
        found = _WATCHED.fullmatch(text)
        if found is None:
            continue
        value = found[2] or found[4] or (texts[index + 1] if index + 1 < len(texts) else "")
        if value is None:
            raise Unreadable("what cargo watch runs is known only at run time")
        codes.append(f"cargo {value}" if (found[1] or found[3]) in ("x", "exec") else value)
    return codes


_OPERANDS = {
    **dict.fromkeys(("-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"), 1),
    **dict.fromkeys(("-type", "-xtype", "-maxdepth", "-mindepth", "-mtime", "-mmin", "-size"), 1),
    **dict.fromkeys(("-atime", "-ctime", "-amin", "-cmin", "-perm", "-user", "-group"), 1),
    **dict.fromkeys(("-printf", "-newer", "-regextype", "-links", "-inum", "-uid", "-gid"), 1),
    **dict.fromkeys(("-print", "-print0", "-prune", "-empty", "-not", "!", "-o", "-a", "-or"), 0),
    **dict.fromkeys(("-and", "(", ")", "-depth", "-mount", "-xdev", "-ls", "-quit", ","), 0),
    **dict.fromkeys(("-readable", "-writable", "-executable", "-true", "-false"), 0),
}
_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_WRITES = {"-fprint": 1, "-fprint0": 1, "-fls": 1, "-fprintf": 2}


def find_runs(words: Sequence[Word], scene: AnalysisState) -> list[list[Word]]:
    """The commands that `find` runs; also notes the paths it searches, removes and writes."""
    if any(word.loose or (word.text is None and word.pattern[:1] in "*?[") for word in words):
        raise Unreadable("what find is told is known only at run time")
    index, starts = 0, list[Word]()
    while index < len(words) and not _begins_expression(words[index]):
        starts.append(words[index])
        index += 1
    starts = starts or [literal(".")]
    for start in starts:
        # `find` reads names, not the contents of files.
        scene.place(start, PathAccess.READ, "find")
    runs: list[list[Word]] = []
    while index < len(words):
        text = words[index].text
        if text in _RUNS:
            end = _end_of_run(words, index + 1)
            found = words[index + 1 : end]
            runs += _for_each(found, starts, anywhere="dir" in text)
            index = end + 1
        elif text == "-delete":
            for start in starts:
                _delete(start, words, scene)
            index += 1
        elif text in _WRITES and index + 1 < len(words):
            scene.place(words[index + 1], PathAccess.WRITE, "find")
            index += 1 + _WRITES[text]
        elif text in _OPERANDS:
            index += 1 + _OPERANDS[text]
        else:
            raise Unreadable(f"find {words[index].shown} is not analysed")
    return runs


def _delete(start: Word, words: Sequence[Word], scene: AnalysisState) -> None:
    """Note the removed paths: everything, or the files with a name."""
    texts = [word.text for word in words]
    if texts.count("-name") == 1 and not {"-o", "-or", "-not", "!", ","} & set(texts):
        name = words[texts.index("-name") + 1].text if texts[-1] != "-name" else None
        if name and "/" not in name and start.text is not None:
            found = Word(f"{start.pattern.rstrip('/')}/**/{name}", None)
            scene.place(found, PathAccess.WRITE, "find")
            return
    scene.place(start, PathAccess.WRITE, "find", tree=True)


def _begins_expression(word: Word) -> bool:
    text = word.text
    return text is not None and (text.startswith("-") or text in ("(", ")", "!", ","))


def _end_of_run(words: Sequence[Word], start: int) -> int:
    for index in range(start, len(words)):
        text = words[index].text
        if text == ";" or (text == "+" and (words[index - 1].pattern in ("{}", "\\{\\}"))):
            return index
        if words[index].many:
            break
    raise Unreadable("what find runs has no clear end")


def _for_each(words: Sequence[Word], starts: Sequence[Word], *, anywhere: bool) -> list[list[Word]]:
    if not any("{}" in word.pattern.replace("\\", "") for word in words):
        return [list(words)]
    made: list[list[Word]] = []
    for start in starts:
        pattern = start.pattern.rstrip("/")
        within = "\0" if anywhere or start.text is None or not pattern else f"{pattern}/**"
        # The file may also be the starting point itself.
        made.append([_replace(word, "{}", within) for word in words])
        if within != "\0":
            made.append([_replace_exactly(word, start) for word in words])
    return made


def _replace_exactly(word: Word, start: Word) -> Word:
    found = _replace(word, "{}", start.pattern)
    if found is word or start.text is None or word.text is None:
        return found
    return literal(word.text.replace("{}", start.text))
