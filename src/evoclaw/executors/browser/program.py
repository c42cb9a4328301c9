"""Finds Chromium on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM_PATHS = (
    "/usr/lib/chromium/chromium",
    "/snap/bin/chromium",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
PROGRAM_PATTERNS = (
    ".cache/ms-playwright/chromium-*/chrome-linux*/chrome",
    "Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
"""Where `playwright install chromium` puts it, below the home folder."""


def find_browser(named: str = "", *, env: Mapping[str, str] | None = None) -> Path | str:
    """The path of a usable Chromium, or as text why there is none and what to do about it.

    Args:
        named: The program that the configuration names; nothing else is looked for then.
        env: The environment; this process's if not given.
    """
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install 'evoclaw[browser]'"
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    if named:
        found = shutil.which(named, path=path)
        return Path(found) if found else f"there is no program {named!r}"
    for name in (*PROGRAM_NAMES, *PROGRAM_PATHS):
        if found := shutil.which(name, path=path):
            return Path(found)
    for pattern in PROGRAM_PATTERNS:
        if own := sorted(Path.home().glob(pattern)):
            return own[-1]
    return "Chromium is not installed: install your system's package `chromium`"
