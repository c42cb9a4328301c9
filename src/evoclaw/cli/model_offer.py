"""Offers to install a model to a user who has none; nothing is downloaded unasked."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from evoclaw.cli.output import print_err
from evoclaw.cli.terminal import is_interactive
from evoclaw.core.errors import EvoClawError
from evoclaw.providers.models.local import server_installed
from evoclaw.providers.models.offer import ModelOffer, best_offer


def usable_offer(env: Mapping[str, str]) -> ModelOffer | None:
    """The best model that this machine could run if it were downloaded; None if there is none."""
    return best_offer(env) if server_installed() else None


def offer_model(env: Mapping[str, str]) -> str:
    """Ask a user at a terminal whether to install the best model; its name, or empty."""
    offer = usable_offer(env) if is_interactive() else None
    if offer is None:
        return ""
    print_err("No model is configured: no API key is set, and no Ollama was found.")
    print_err(f"{offer.entry.title} would run on this machine: {offer.costs}.")
    sys.stderr.write("Download it now? y or n [n]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return ""
    return offer.name if install_offered(offer, env) else ""


def install_offered(offer: ModelOffer, env: Mapping[str, str]) -> bool:
    """Download an offered model; whether it worked. Prints why not."""
    from evoclaw.cli.models import install_model

    try:
        install_model(offer.entry.name, env)
    except EvoClawError as problem:
        print_err(f"{problem}")
        return False
    print_err(f"{offer.name} is installed and verified")
    return True
