"""`evoclaw page`: a link that opens the dashboard of the running service and logs in."""

from __future__ import annotations

import asyncio
import html
import os
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from evoclaw.cli import exits
from evoclaw.cli.client import find_service, open_client
from evoclaw.cli.data_folder import data_folder
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.core.errors import ConfigError
from evoclaw.transport.private_files import write_private

REDIRECT_FILE = "page.html"
"""In the data folder: redirects a browser to the dashboard; only its owner may read it."""
_REDIRECT_HTML = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>EvoClaw</title><a href="{url}">EvoClaw</a>
"""


@click.command(cls=CliCommand)
@click.option("--open", "open_browser", is_flag=True, help="Open the link in your browser")
@json_option()
def page(*, open_browser: bool, as_json: bool) -> int:
    """Print the link; with it, anyone can do everything here until `evoclaw up` ends."""
    url = asyncio.run(_address())
    print_out({"url": url} if as_json else url)
    if open_browser:
        _open(url)
    return exits.OK


async def _address() -> str:
    """The address of the dashboard, with the token after `#`: browsers send no fragment."""
    service = find_service(os.environ)
    if not service.token:
        raise ConfigError(
            "the dashboard needs a token: set EVOCLAW_TOKEN to one that `evoclaw token new` printed"
        )
    async with open_client(os.environ) as client:
        await client.get("/v1/me")
        return f"{client.url}/#token={quote(service.token, safe='')}"


def _open(url: str) -> None:
    # Not the address itself: every user of the machine can read the arguments of a process.
    path = data_folder(os.environ) / REDIRECT_FILE
    write_private(path, _REDIRECT_HTML.format(url=html.escape(url)).encode())
    if not _open_in_browser(path):
        print_err("cannot start a browser; open the link above yourself")


def _open_in_browser(path: Path) -> bool:
    try:
        return webbrowser.open(path.absolute().as_uri())
    except webbrowser.Error:
        return False
