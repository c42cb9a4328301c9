"""`evoclaw page`: the web page of the running service, with a link that logs in."""

from __future__ import annotations

import asyncio
import html
import os
import webbrowser
from argparse import Namespace
from pathlib import Path
from urllib.parse import quote

from evoclaw.cli import exits
from evoclaw.cli.client import find, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.places import data_folder
from evoclaw.cli.render import tell
from evoclaw.core.errors import ConfigError
from evoclaw.transport.broker_accounts import write_private

FILE = "page.html"
"""In the data folder: leads a browser to the page, for its owner alone."""
_LEADING = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>EvoClaw</title><a href="{url}">EvoClaw</a>
"""


def page(options: Namespace, _wiring: object = None) -> int:
    """Say where it is; whoever has this link can do everything here, until `up` ends."""
    url = asyncio.run(_address())
    show(url)
    if options.open:
        _open(url)
    return exits.OK


async def _address() -> str:
    """The page's address with a token behind the `#`, which no browser sends to anybody."""
    place = find(os.environ)
    if not place.token:
        raise ConfigError("set EVOCLAW_TOKEN to one of `evoclaw token new`")
    async with open_client(os.environ) as client:
        await client.get("/v1/me")
        return f"{client.url}/#token={quote(place.token, safe='')}"


def _open(url: str) -> None:
    # Not the address itself: what a program is started with, everybody on the machine can read.
    path = data_folder(os.environ) / FILE
    write_private(path, _LEADING.format(url=html.escape(url)).encode())
    if not _shown(path):
        tell("no browser could be started here; open the link above by hand")


def _shown(path: Path) -> bool:
    try:
        return webbrowser.open(path.absolute().as_uri())
    except webbrowser.Error:
        return False
