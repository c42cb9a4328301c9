"""Files that a user attaches to a message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evoclaw.cli.attachments import read_attachment
from evoclaw.core.errors import ConfigError


async def test_only_regular_files_can_be_attached(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    for name in (str(pipe), "/dev/zero", str(tmp_path)):
        with pytest.raises(ConfigError, match="not a regular file"):
            await read_attachment(name)


async def test_a_name_that_cannot_be_a_path_is_an_error_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        await read_attachment("a\0b.png")
    with pytest.raises(ConfigError, match="cannot read"):
        await read_attachment("~nobody-of-that-name/x.png")
