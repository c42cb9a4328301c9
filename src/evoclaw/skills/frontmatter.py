"""The head of a SKILL.md: the small part of YAML that is needed, and nothing that surprises.

Every value stays text (`no` is not false, `1.0` is not a number). Texts in one line, in quotes,
over several lines, as blocks `|` and `>`; a map or a list of texts, one level deep. Whatever else
YAML can do (anchors, tags, references, nesting) is refused with its line.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

Value: TypeAlias = str | dict[str, str] | list[str]

MAX_LINES = 500
_KEY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*)|$)")
_BLOCK = re.compile(r"([|>])([+-]?)(?:[ \t]+#.*)?")
_COMMENT = re.compile(r"[ \t]+#.*")
_SPECIAL = tuple("[]{}&*!|>'\"%@`#,")
_JSON_ESCAPES = re.compile(r"\\(?![\"\\/bfnrtu])")


class FrontMatterError(ValueError):
    """A line that is not understood."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.problem = line, problem


def split(text: str) -> tuple[list[str], str]:
    """The lines between the two `---`, and what follows."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise FrontMatterError(1, "the file must begin with a line `---`")
    for number, line in enumerate(lines[1 : MAX_LINES + 2], 1):
        if line.rstrip() == "---":
            return lines[1:number], "\n".join(lines[number + 1 :])
    raise FrontMatterError(1, f"no second line `---` within {MAX_LINES} lines")


def read(lines: list[str]) -> dict[str, Value]:
    """Read the head's lines."""
    return _Reader(lines).top()


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        for number, line in enumerate(lines):
            if "\t" in line[: len(line) - len(line.lstrip())]:
                raise FrontMatterError(number + 2, "use spaces, not tabs, in front of a line")

    def top(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while (line := self._next_line()) is not None:
            if line.startswith(" "):
                raise self._error("this line is further in than the one above it says")
            key, said = self._key(line)
            if key in found:
                raise self._error(f"{key!r} is there twice")
            found[key] = self._value(said, 0)
        return found

    def _value(self, said: str, indent: int) -> Value:
        if said and not said.startswith("#"):
            if said.startswith("["):
                return self._flow(said)
            return self._scalar(said, indent)
        self._at += 1
        line = self._next_line()
        if line is None or _indent(line) <= indent:
            if line is not None and line.startswith("- "):
                return self._list(0)
            return ""
        deeper = _indent(line)
        return self._list(deeper) if line.lstrip().startswith("- ") else self._map(deeper)

    def _map(self, indent: int) -> dict[str, str]:
        found: dict[str, str] = {}
        while (line := self._next_line()) is not None and _indent(line) >= indent:
            if _indent(line) > indent:
                raise self._error("only one level of keys is understood")
            key, said = self._key(line.lstrip())
            if key in found:
                raise self._error(f"{key!r} is there twice")
            if not said or said.startswith("#"):
                found[key] = ""
                self._at += 1
            else:
                found[key] = self._scalar(said, indent)
        return found

    def _list(self, indent: int) -> list[str]:
        found: list[str] = []
        while (line := self._next_line()) is not None and _indent(line) == indent:
            item = line.lstrip()
            if not item.startswith("- "):
                break
            if _KEY.match(item[2:].strip()):
                raise self._error("a list may hold texts only; put this one in quotes")
            found.append(self._scalar(item[2:].strip(), indent))
        return found

    def _scalar(self, said: str, indent: int) -> str:
        if _BLOCK.fullmatch(said):
            return self._block(said, indent)
        if said.startswith(("'", '"')):
            return self._quoted(said)
        if said.startswith(_SPECIAL) or said.startswith(("- ", "? ", ": ")) or said in "-?:":
            raise self._error(f"a text may not begin with {said[0]!r}; put it in quotes")
        parts = [self._plain(said)]
        self._at += 1
        # A text goes on as long as lines are further in.
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and (_indent(line) <= indent or line.lstrip().startswith("#")):
                break
            parts.append(self._plain(line.strip()))
            self._at += 1
        return _folded(parts).strip()

    def _plain(self, text: str) -> str:
        text = _COMMENT.sub("", text)
        if ": " in text or text.endswith(":"):
            raise self._error("a text with a colon must be in quotes")
        return text.rstrip()

    def _quoted(self, said: str) -> str:
        quote = said[0]
        pattern = r"'((?:[^']|'')*)'" if quote == "'" else r'"((?:[^"\\]|\\.)*)"'
        found = re.match(pattern, said)
        if found is None:
            raise self._error(f"the text has no closing {quote}, which must be on the same line")
        rest = said[found.end() :]
        if rest.strip() and not _COMMENT.fullmatch(rest):
            raise self._error(f"there is something behind the closing {quote}")
        single = quote == "'"
        text = found[1].replace("''", "'") if single else self._unescaped(found[0])
        self._at += 1
        return text

    def _unescaped(self, quoted: str) -> str:
        if _JSON_ESCAPES.search(quoted.replace("\\\\", "")):
            raise self._error(r"only \" \\ \/ \b \f \n \r \t \u0041 are understood in quotes")
        try:
            return msgspec.json.decode(quoted.replace("\t", "\\t"), type=str)
        except msgspec.DecodeError:
            raise self._error("the text in quotes is not understood") from None

    def _block(self, said: str, indent: int) -> str:
        style, chomp = said[0], said[1:2]
        self._at += 1
        taken: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and _indent(line) <= indent:
                break
            taken.append(line.rstrip())
            self._at += 1
        inner = min((_indent(line) for line in taken if line), default=0)
        lines = [line[inner:] for line in taken]
        text = "\n".join(lines).strip("\n") if style == "|" else _folded(lines).strip("\n")
        return text if chomp == "-" or not text else text + "\n"

    def _flow(self, said: str) -> list[str]:
        found = re.fullmatch(r"\[([^\[\]{}&*!#]*)\](?:[ \t]+#.*)?", said)
        if found is None:
            raise self._error("a list in brackets must be simple texts on one line")
        inside = found[1].strip()
        items = [item.strip() for item in inside.split(",")] if inside else []
        self._at += 1
        return [item[1:-1] if _is_quoted(item) else item for item in items if item]

    def _key(self, line: str) -> tuple[str, str]:
        found = _KEY.fullmatch(line.rstrip())
        if found is None:
            raise self._error(f"expected `key: value`, got {line.strip()[:60]!r}")
        return found[1], (found[2] or "").strip()

    def _next_line(self) -> str | None:
        """The next line that says something."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._at += 1
        return None

    def _error(self, problem: str) -> FrontMatterError:
        return FrontMatterError(min(self._at, len(self._lines) - 1) + 2, problem)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] and text[0] in "'\""


def _folded(lines: list[str]) -> str:
    """Lines joined by spaces; an empty one stands for a new line."""
    text = ""
    for line in lines:
        if not line:
            text += "\n"
        else:
            text += line if not text or text.endswith("\n") else f" {line}"
    return text
