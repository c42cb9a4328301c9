"""Shell builtins that run code, set variables, or change the working folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import ANY_WORD, Word, literal
from evoclaw.shell.words import calculate

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _eval(words: Sequence[Word], scene: AnalysisState) -> None:
    texts = [word.text for word in words]
    if any(text is None for text in texts):
        scene.doubt("what eval runs is known only at run time")
        return
    scene.reparse(" ".join(text or "" for text in texts if text != "--"), scene.posix)


def _trap(words: Sequence[Word], scene: AnalysisState) -> None:
    operands = [word for word in words if word.text not in ("--", "-p", "-l")]
    if len(operands) < 2:
        return
    text = operands[0].text
    if text is None:
        scene.doubt("what trap runs is known only at run time")
    elif text != "-":
        scene.repeated += 1
        scene.reparse(text, scene.posix)
        scene.repeated -= 1


def _cd(words: Sequence[Word], scene: AnalysisState) -> None:
    operands = [word for word in words if word.text not in ("-P", "-L", "-e", "--")]
    if not operands:
        home = scene.value("HOME")
        scene.go(ANY_WORD if home is None else Word(home, home.replace("\\", "")))
    elif operands[0].text is None or operands[0].text == "-" or len(operands) > 1:
        scene.go(ANY_WORD)
    else:
        scene.go(operands[0])


def _lose(words: Sequence[Word], scene: AnalysisState) -> None:
    scene.go(ANY_WORD)


def _changes_meaning(words: Sequence[Word], scene: AnalysisState) -> None:
    if words:
        scene.doubt("it changes what later words mean")


def _names(values: str) -> Callable[[Sequence[Word], AnalysisState], None]:
    """A builtin that sets the variables in its operands; options in `values` take a value."""

    def assign(words: Sequence[Word], scene: AnalysisState) -> None:
        rest = iter(words)
        for word in rest:
            text = word.text
            if text is None:
                scene.doubt("which variable is set is known only at run time")
                return
            if text.startswith("-"):
                if re.match(r"-\w*[Cc]", text):
                    scene.doubt("it calls a function for each line")
                if text[-1] in values:
                    value = next(rest, None)
                    if text[-1] == "a" and value is not None:
                        _set(value, scene)
                elif "a" in text or "v" in text:
                    scene.doubt("which variable is set is not clear")
                continue
            _set(word, scene)

    return assign


def _set(word: Word, scene: AnalysisState) -> None:
    if word.text is None or not _NAME.fullmatch(word.text):
        scene.doubt("which variable is set is known only at run time")
    else:
        scene.assign(word.text, None)


def _printf(words: Sequence[Word], scene: AnalysisState) -> None:
    if not words:
        return
    text = words[0].text
    if text is None:
        if words[0].pattern[:1] in "\0-*?[":
            scene.doubt("whether printf sets a variable is known only at run time")
    elif text.startswith("-v"):
        _set(literal(text[2:]) if text[2:] else (words[1] if len(words) > 1 else ANY_WORD), scene)


def _declare(words: Sequence[Word], scene: AnalysisState) -> None:
    for word in words:
        name, equals, value = (word.text or "\0").partition("=")
        if name.startswith(("-", "+")):
            if re.search(r"[niIaA]", name):
                scene.doubt("a declaration is not analysed")
        elif not _NAME.fullmatch(name.removesuffix("+")):
            scene.doubt("which variable is set is known only at run time")
        elif value.startswith("("):
            scene.doubt("a declaration is not analysed")
        elif equals:
            scene.assign(name.removesuffix("+"), literal(value))


def _unset(words: Sequence[Word], scene: AnalysisState) -> None:
    for word in words:
        if not (word.text or "").startswith("-"):
            _set(word, scene)


def _let(words: Sequence[Word], scene: AnalysisState) -> None:
    for word in words:
        calculate("?" if word.text is None else word.text, scene)
        if word.text is None:
            scene.doubt("what let calculates is known only at run time")


def _test(words: Sequence[Word], scene: AnalysisState) -> None:
    for index, word in enumerate(words):
        following = words[index + 1].text if index + 1 < len(words) else "x"
        if word.text in ("-v", "-R") and not _NAME.fullmatch(following or ""):
            scene.doubt("a test of a variable is known only at run time")
        if word.many or (word.text is None and len(words) == 2 and index == 0):
            scene.doubt("a test is known only at run time")


def _switch(plain: str) -> Callable[[Sequence[Word], AnalysisState], None]:
    """Options of the shell, of which only some keep the meaning of words."""

    def switch(words: Sequence[Word], scene: AnalysisState) -> None:
        texts = [word.text for word in words]
        if "--" in texts:
            texts = texts[: texts.index("--")]
        if not all(text is not None and re.fullmatch(plain, text) for text in texts):
            scene.doubt("options of the shell change what later words mean")

    return switch


BUILTINS: dict[str, Callable[[Sequence[Word], AnalysisState], None]] = {
    "eval": _eval,
    "trap": _trap,
    "cd": _cd,
    **dict.fromkeys(("pushd", "popd"), _lose),
    **dict.fromkeys(
        ("alias", "hash", "enable", "bind", "complete", "compgen", "compopt", "fc", "coproc"),
        _changes_meaning,
    ),
    "read": _names("adinNptu"),
    **dict.fromkeys(("mapfile", "readarray"), _names("dnOsuCc")),
    "getopts": lambda words, scene: _names("")(words[1:2], scene),
    "printf": _printf,
    **dict.fromkeys(("declare", "typeset", "export", "readonly", "local"), _declare),
    "unset": _unset,
    "let": _let,
    "test": _test,
    "set": _switch(r"[-+][euxvfCEh]*o?|pipefail|errexit|nounset|xtrace|noclobber|noglob"),
    "shopt": _switch(r"-[squ]|nullglob|globstar|failglob|lastpipe|inherit_errexit|dotglob"),
    "wait": lambda words, scene: (
        scene.doubt("wait sets a variable")
        if any((word.text or "-p").startswith("-p") for word in words)
        else None
    ),
}
