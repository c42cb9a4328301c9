"""Shows notifications on the desktop of the machine that the orchestrator runs on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.sanitizing import one_line

DESKTOP_TIMEOUT_S = 10.0
_APPLE_SCRIPT = (
    "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
)


class DesktopSender:
    """The desktop of this machine, through the program that its system has for this."""

    def __init__(self, which: Callable[[str], str | None] = shutil.which) -> None:
        self._command = _command(which)

    async def send(self, notification: Notification, target: str) -> str:
        """Show a message."""
        # Notification servers read some markup; `&` and `<` are the only characters it needs.
        title, text = notification.title, notification.text
        if self._command[0].endswith("notify-send"):
            text = text.replace("&", "&amp;").replace("<", "&lt;")
        process = await asyncio.create_subprocess_exec(
            *self._command,
            title,
            text,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DESKTOP_TIMEOUT_S):
                _, stderr = await process.communicate()
        except TimeoutError:
            raise Undelivered("the desktop did not show the message in time") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            reason = one_line(stderr.decode(errors="replace")) or "no error output"
            raise Undelivered(f"the desktop did not show the message: {reason}")
        return "the desktop of this machine"


def _command(which: Callable[[str], str | None]) -> Sequence[str]:
    if found := which("notify-send"):
        return (found, "--app-name=EvoClaw", "--")
    if found := which("osascript"):
        return (found, "-e", _APPLE_SCRIPT)
    raise ConfigError(
        "a notifier of kind 'desktop' needs the program notify-send: install libnotify "
        "(libnotify-bin on Debian and Ubuntu), or remove the notifier"
    )
