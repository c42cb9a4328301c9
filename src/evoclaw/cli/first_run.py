"""The guided first run: `evoclaw` alone, at a terminal, without settings."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.data_folder import data_folder
from evoclaw.cli.environment_file import add_variable
from evoclaw.cli.init import SETTINGS_FILE, write_settings
from evoclaw.cli.model_offer import install_offered, usable_offer
from evoclaw.cli.output import print_err
from evoclaw.cli.progress import waiting
from evoclaw.cli.terminal_text import clean, format_table, one_line
from evoclaw.core.errors import EvoClawError

if TYPE_CHECKING:
    from evoclaw.orchestrator.overview.model_checks import ModelCheck

FIRST_QUESTION = "What is in this folder?"
_KEY_PREFIXES = (
    ("sk-ant-", "ANTHROPIC_API_KEY"),
    ("sk-or-", ""),
    ("sk-", "OPENAI_API_KEY"),
)
"""How keys begin, and the variable of those that have a default model; the first match counts."""


class _Choice(Struct, frozen=True):
    """One answer to the question for a model."""

    kind: Literal["model", "download", "key", "later"]
    text: str
    about: str


def needs_first_run() -> bool:
    """Whether nothing was set up yet for this user."""
    folder = data_folder(os.environ)
    return not any((folder / name).exists() for name in (SETTINGS_FILE, "api.json", "evoclaw.db"))


def first_run() -> int:
    """Ask for a model, a folder and how to run; write the settings and try it."""
    print_err("Welcome to EvoClaw. Four questions, then it works; Ctrl-C leaves, and nothing is")
    print_err("changed until the last one. You can change every answer later.\n")
    model = _ask_for_model()
    folder = _ask_for_folder()
    is_service = bool(model) and _ask_for_service()
    path = write_settings(os.environ, model)
    print_err(f"\nThe settings are in {path}; `evoclaw config` shows and changes them.")
    if not model:
        print_err("Choose a model later: `evoclaw config set agents.evoclaw.model NAME`, or export")
        print_err("an API key. `evoclaw doctor` says what is missing.")
        return exits.OK
    if is_service:
        _start_service(folder)
    return _try_it(folder)


def _ask_for_model() -> str:
    """A model that answered a real request; empty for later."""
    with waiting("looking for models and keys"):
        choices = asyncio.run(_choices())
    print_err("1. Which model should it use?\n")
    rows = [(f"  {number}", one.text, one.about) for number, one in enumerate(choices, 1)]
    for line in format_table(rows):
        print_err(line)
    while True:
        choice = _pick(choices)
        if choice.kind == "later":
            return ""
        model = _chosen_model(choice)
        if model and _works(model):
            return model


def _chosen_model(choice: _Choice) -> str:
    """The model that a choice means, downloaded if need be; empty if that did not work."""
    match choice.kind:
        case "key":
            return _model_of_key()
        case "download":
            return choice.text if _download() else ""
        case _:
            return choice.text


def _download() -> bool:
    offer = usable_offer(os.environ)
    return offer is None or install_offered(offer, os.environ)


async def _choices() -> Sequence[_Choice]:
    from evoclaw.providers.registry import found_models

    found = [_Choice("model", name, why) for name, why in await found_models(os.environ)]
    offer = usable_offer(os.environ)
    about = f"download it to this machine: {offer.costs}" if offer else ""
    return (
        *found,
        _Choice(
            "key",
            "paste an API key",
            "of Anthropic or OpenAI; only you can read it",
        ),
        *([_Choice("download", offer.name, about)] if offer else []),
        _Choice("later", "later", "set up the rest now"),
    )


def _pick(choices: Sequence[_Choice]) -> _Choice:
    while True:
        answer = _ask("Number", "1")
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            return choices[int(answer) - 1]
        print_err(f"type a number from 1 to {len(choices)}")


def _model_of_key() -> str:
    """Read a key without showing it, and store it; the default model of its vendor."""
    from evoclaw.providers.registry import DEFAULT_MODELS

    key = getpass.getpass("The key (it is not shown): ", stream=sys.stderr).strip()
    variable = next((name for start, name in _KEY_PREFIXES if key.startswith(start)), "")
    if not variable:
        print_err("this is not a key of Anthropic or OpenAI; export another one as its variable,")
        print_err("such as GROQ_API_KEY, and choose the model with `evoclaw config set`")
        return ""
    path = add_variable(os.environ, variable, key)
    print_err(f"stored as {variable} in {path}")
    return DEFAULT_MODELS[variable]


def _works(model: str) -> bool:
    """Whether the model answers one real request; says why not."""
    from evoclaw.orchestrator.overview.model_checks import ModelCheck

    print_err(f"   testing {model} …")
    try:
        with waiting(f"waiting for {clean(model)}"):
            found = asyncio.run(_check(model))
    except (EvoClawError, OSError) as error:
        found = ModelCheck(model, False, str(error))
    if found.problem:
        print_err(f"   the model does not work: {one_line(found.problem, 300)}\n   choose again")
        return False
    print_err(f"   it works: “{one_line(found.answer, 40)}” after {found.seconds:.1f} s")
    return True


async def _check(model: str) -> ModelCheck:
    from evoclaw.orchestrator.overview.model_checks import check_provider
    from evoclaw.providers.registry import open_provider

    async with open_provider(model, os.environ) as provider:
        return await check_provider(provider)


def _ask_for_folder() -> Path:
    print_err("\n2. Which folder may it work in? It reads and writes there, and asks before it")
    print_err("   changes something.")
    while True:
        folder = Path(_ask("Folder", str(Path.cwd()))).expanduser().absolute()
        if folder.is_dir():
            return folder
        print_err(f"{folder} is not a folder")


def _ask_for_service() -> bool:
    print_err("\n3. Run it as a service? It then continues when you close the terminal, has a")
    print_err("   dashboard, and other machines can join. Otherwise it runs when you ask it.")
    return _ask("Service, y or n", "n").lower() in ("y", "yes")


def _start_service(folder: Path) -> None:
    """Install and start a systemd unit of this user, or say how to start without systemd."""
    systemctl = shutil.which("systemctl")
    has_manager = systemctl is not None and (
        subprocess.run([systemctl, "--user", "show-environment"], capture_output=True).returncode
        == 0
    )
    if systemctl is None or not has_manager:
        print_err(f"This machine has no systemd for users. Start the service in its own terminal:"
                  f"\n\n  cd {folder} && evoclaw up\n")  # fmt: skip
        return
    from evoclaw.cli.systemd import install_user_unit

    unit = install_user_unit(folder)
    subprocess.run([systemctl, "--user", "daemon-reload"], check=False)
    started = subprocess.run([systemctl, "--user", "enable", "--now", unit.name], check=False)
    if started.returncode:
        print_err(f"The service did not start: systemctl --user status {unit.stem}")
    else:
        print_err(f"The service runs: {unit}. `evoclaw page` opens the dashboard.")


def _try_it(folder: Path) -> int:
    from evoclaw.cli.run import run

    print_err("\n4. Ask it something.")
    question = _ask("Question", FIRST_QUESTION)
    code: int = run.main(["--folder", str(folder), question], standalone_mode=False)
    print_err("\nNext: `evoclaw run QUESTION`, `evoclaw up` and `evoclaw chat`, `evoclaw --help`.")
    return code


def _ask(question: str, default: str) -> str:
    sys.stderr.write(f"   {question} [{default}]: ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt  # Ctrl-D
    return line.strip() or default
