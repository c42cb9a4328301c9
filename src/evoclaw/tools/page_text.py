"""Extracts readable text from a web page: the article of an HTML page, other text as it is.

The only file that imports `trafilatura` (extra `web`). Without it, or where it finds no article,
all the text of the page is returned instead.
"""

from __future__ import annotations

import codecs
import html
import re
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

Format: TypeAlias = Literal["markdown", "text", "html"]

MAX_HTML_CHARS, MAX_HTML_TAGS = 1_000_000, 40_000
"""Of HTML that is parsed: extraction takes 0.1 ms per tag."""
MAX_TITLE_CHARS = 200
SNIFF_BYTES = 2_048
HTML_MEDIA_TYPES = ("text/html", "application/xhtml+xml")
TEXT_MEDIA_TYPES = re.compile(
    r"text/.+|.+\+(json|xml|yaml)|message/rfc822"
    r"|application/(json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|ecmascript|x-javascript"
    r"|x-sh|sql|graphql|rtf|x-tex|x-httpd-php)"
)
# A page may not choose any codec: some are slow, and some do not produce text.
ALLOWED_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-?8859-?\d+|windows-?\d+|cp\d+|koi8-[rut]"
    r"|gb2312|gbk|gb18030|big5(-hkscs)?|shift[_-]jis|euc-(jp|kr)|iso-2022-jp|macintosh|tis-620"
)
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,2000})", re.IGNORECASE)
_INVISIBLE_ELEMENTS = ("script", "style", "noscript", "template", "svg", "head")
_BLOCK_TAGS = re.compile(
    r"</?(?:p|div|br|hr|li|ul|ol|dl|dt|dd|tr|table|h[1-6]|pre|section|article|header|footer|main"
    r"|nav|aside|blockquote|form|figure|option|title)\b[^<>]*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-zA-Z!?][^<>]*>")


class PageText(Struct, frozen=True):
    """The text of a page."""

    text: str
    title: str = ""
    note: str = ""
    """How the text was extracted, if the reader should know."""


def is_text(media_type: str, body: bytes) -> bool:
    """Whether a body is text, by its media type, or by its first bytes if that says nothing."""
    if media_type in HTML_MEDIA_TYPES or TEXT_MEDIA_TYPES.fullmatch(media_type):
        return True
    if media_type not in ("", "application/octet-stream", "unknown/unknown"):
        return False
    head = body[:SNIFF_BYTES]
    return body.startswith(tuple(bom for bom, _ in BOMS)) or not re.search(
        rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", head
    )


def extract_text(body: bytes, content_type: str, url: str, wanted: Format = "markdown") -> PageText:
    """Extract the text of a response body.

    Args:
        body: The bytes of the response.
        content_type: The `Content-Type` header.
        url: The address of the page, to resolve its links.
        wanted: `html` returns the source.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    text = decode_body(body, content_type)
    if not _is_html(media_type, text):
        return PageText(text)
    title = _title(text)
    if wanted == "html":
        return PageText(text, title)
    end, note = _source_end(text), ""
    if end < len(text):
        text = text[:end]
        note = f"Only the first {end:,} characters of the page's source were read."
    article, why = _article(text, url, wanted)
    if article:
        return PageText(article, title, note)
    return PageText(all_text(text), title, f"{note} {why} All its text is shown.".strip())


def decode_body(body: bytes, content_type: str) -> str:
    """Decode by the byte order mark, the declared charset, or UTF-8 with a Latin fallback."""
    for bom, name in BOMS:
        if body.startswith(bom):
            return body[len(bom) :].decode(name, "replace")
    head = body[:SNIFF_BYTES].decode("latin-1")
    for source in (content_type, head if "<" in head else ""):
        declared = _DECLARED_CHARSET.search(source)
        if declared and ALLOWED_CHARSETS.fullmatch(declared[1].lower()):
            try:
                return body.decode(declared[1], "replace")
            except LookupError:
                continue
    try:
        return body.decode()
    except UnicodeDecodeError as problem:
        # A page truncated inside a character is still UTF-8; other bytes are mostly Latin.
        cut = problem.reason == "unexpected end of data"
        return body.decode("utf-8" if cut else "windows-1252", "replace")


def _is_html(media_type: str, text: str) -> bool:
    if media_type in HTML_MEDIA_TYPES:
        return True
    start = text[:SNIFF_BYTES].lstrip().lower()
    return media_type in ("", "application/octet-stream") and start.startswith(
        ("<!doctype html", "<html")
    )


def _source_end(text: str) -> int:
    """The index at which parsing of the source stops."""
    end = min(len(text), MAX_HTML_CHARS)
    if text.count("<", 0, end) <= MAX_HTML_TAGS:
        return end
    end = 0
    for _ in range(MAX_HTML_TAGS):
        end = text.index("<", end) + 1
    return end - 1


def _title(text: str) -> str:
    found = _TITLE.search(text[: 64 << 10])
    return " ".join(html.unescape(found[1]).split())[:MAX_TITLE_CHARS] if found else ""


def _article(text: str, url: str, wanted: Format) -> tuple[str, str]:
    """The article; or an empty text and the reason."""
    try:
        import trafilatura
    except ImportError:
        return "", "No article extractor is installed (`pip install 'evoclaw[web]'`)."
    extract = cast("Any", trafilatura).extract
    try:
        found = extract(
            text,
            url=url,
            output_format="markdown" if wanted == "markdown" else "txt",
            include_links=wanted == "markdown",
            include_tables=True,
            include_comments=False,
        )
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as problem:
        return "", f"The article of the page could not be extracted ({type(problem).__name__})."
    return (found or "").strip(), "No article was found on the page."


def all_text(text: str) -> str:
    """All text of an HTML page without tags, scripts and styles, in linear time."""
    text = _remove_between(text, "<!--", "-->")
    for name in _INVISIBLE_ELEMENTS:
        text = _remove_between(text, f"<{name}", f"</{name}")
    text = html.unescape(_TAG.sub("", _BLOCK_TAGS.sub("\n", text)))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _remove_between(text: str, start: str, end: str) -> str:
    lower, kept, position = text.lower(), list[str](), 0
    if len(lower) != len(text):
        # Lower-casing lengthens some characters, and the indexes would no longer match.
        lower = text
    while (opened := lower.find(start, position)) >= 0:
        inside = opened + len(start)
        if start != "<!--" and lower[inside : inside + 1].isalnum():
            # `<header` is not `<head`.
            kept.append(text[position:inside])
            position = inside
            continue
        closed = lower.find(end, inside)
        after = lower.find(">", closed) if closed >= 0 else -1
        if after < 0:
            break
        kept.append(text[position:opened])
        position = after + 1
    kept.append(text[position:])
    return "".join(kept)
