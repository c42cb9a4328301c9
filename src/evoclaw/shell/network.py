"""Programs that contact hosts, and which hosts by their arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import Word, literal, names
from evoclaw.shell.hosts import host_in, host_of

FETCHERS = frozenset({"curl", "wget", "http", "https", "xh", "aria2c", "lynx", "w3m", "links"})
TALKERS = names(
    """nc ncat netcat telnet ftp tftp ping ping6 traceroute tracepath mtr dig nslookup host
    whois nmap mosh socat openssl ssh-keyscan ssh-copy-id rlogin rsh"""
)
COPIERS = frozenset({"scp", "rsync", "sftp"})
_REMOTE = ("push", "pull", "fetch", "clone", "ls-remote", "submodule", "remote", "archive")
_FETCHING = names("install i ci add update upgrade publish exec x dlx download wheel get")
CLIENTS = names("pip pip3 pipx uv poetry pdm npm pnpm yarn bun gem cargo go")
"""Programs that fetch packages from the hosts in their own settings."""
ANYWHERE = names("apt apt-get aptitude apk dnf yum zypper pacman brew docker podman snap")
_TALKING = frozenset(
    {*FETCHERS, *TALKERS, *COPIERS, *ANYWHERE, *CLIENTS, "ssh", "git", "hg", "npx"}
)
_ELSEWHERE = re.compile(
    r"--?(proxy|preproxy|socks|connect-to|resolve|doh|config|dns|interface|unix|abstract|execute"
    r"|input-file|next|variable|expand|url).*|-[A-Za-z]*[xKi].*"
)
"""Options of fetchers that redirect them to other hosts than the URL's."""
_VALUED = re.compile(
    r"-[a-zA-Z]*[AbcCdDeEFHmoPQrtTuUwXyYz]|--(data(-\w+)?|header|output|output-d\w+|request|user"
    r"|user-agent|form|max-time|connect-timeout|retry|cookie|cookie-jar|referer|cacert|cert|key"
    r"|write-out|upload-file|range|post-data|timeout|tries|directory-prefix|dump-header|json)"
)
_REMOTE_PATH = re.compile(r"(?:[^@/\s]+@)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)::?(?!//).*", re.S)
_HOSTISH = re.compile(
    r"(localhost|\[.*\]|[\w.-]+\.[\w-]+\.?|0x[0-9a-f]+|[0-9]+)(:[0-9]+)?(/.*)?", re.I
)


def meet_hosts(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    """Note the hosts that a program contacts."""
    for word in words:
        if "://" in word.pattern:
            _url(name, word, scene)
    if name in _TALKING:
        _meet(name, words, scene)


def _meet(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    if name in FETCHERS:
        _fetch(name, words, scene)
    elif name in TALKERS or name == "ssh":
        _talk(name, words, scene)
    elif name in COPIERS or name in ("git", "hg"):
        _copy(name, words, scene)
    elif name not in CLIENTS or not words or _FETCHING & {word.text or "x" for word in words}:
        scene.host("", name, sure=False)


def _url(name: str, word: Word, scene: AnalysisState) -> None:
    if word.text is None:
        scene.host("", name)
        return
    # Also `git+https://…`, `--index-url=https://…` and several in one word.
    for found in re.finditer(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*", word.text):
        host = host_of(found[0])
        if host is None:
            scene.both(literal(re.sub(r"^file:/*(localhost)?/?", "/", found[0], flags=re.I)), name)
            scene.both(Word("\0", None), name)
        else:
            scene.host(host, name)


def _fetch(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    valued = False
    for word in words:
        text = word.text
        if text is None:
            scene.host("", name)
        elif text.startswith("-") and not valued:
            if _ELSEWHERE.fullmatch(text):
                scene.host("", name)
            valued = _VALUED.fullmatch(text) is not None
            continue
        elif "://" not in text:
            host = host_of(text) or ""
            # A text that is not a host may be one after the program decodes it.
            sure = not valued and (not host or _HOSTISH.fullmatch(text) is not None)
            if sure or host:
                scene.host(host, name, sure=sure)
        elif re.search(r"://[^/]*[{}\[*]", text) and not re.search(
            r"://[^/]*\[[0-9A-Fa-f:]+\]", text
        ):
            scene.host("", name)
        valued = False


def _talk(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    sure = True
    for word in words:
        text = word.text
        if text is None:
            scene.host("", name)
        elif text.startswith("-"):
            if name == "ssh" and re.match(r"-[A-Za-z]*[oFJWw]", text):
                scene.host("", name)
        elif "://" not in text:
            for piece in {text, *re.split(r"[:,]", text)}:
                scene.host(host_in(piece.partition("/")[0]), name, sure=sure)
            sure = False


def _copy(name: str, words: Sequence[Word], scene: AnalysisState) -> None:
    git = name in ("git", "hg")
    asks = not git or any((word.text or "") in _REMOTE for word in words)
    met = False
    for word in words:
        text = word.text
        if text is None:
            if asks:
                scene.host("", name)
        elif "://" in text:
            met = True
        elif asks and (found := _REMOTE_PATH.fullmatch(text)):
            scene.host(host_in(found[1]), name, sure=not git or "@" in text)
            met = True
    if git and asks and not met:
        # The repository's settings name the remote host.
        scene.host("", name, sure=False)
