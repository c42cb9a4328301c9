"""The notice of an emergency stop: the first lines of `status`, `chat` and `up`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from evoclaw.cli.terminal_text import clean
from evoclaw.core.messages import JSON
from evoclaw.governance.stops import Stop, StopKind, UntrustedStopFile


def describe_stop(stop: Stop) -> str:
    """What is stopped, by whom, when and why."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stop.at)) if stop.at else ""
    reason = f": {clean(stop.reason)}" if stop.reason else ""
    return f"{clean(stop.subject)}, by {clean(stop.by) or 'an unknown user'} {at}".strip() + reason


def stop_lines(stops: Iterable[Stop]) -> list[str]:
    """One line for each stop, with the command that releases it."""
    return [
        f"EMERGENCY STOP: {describe_stop(stop)}; release it with "
        f"`evoclaw stop --release {_option(stop)}`"
        for stop in stops
    ]


def local_stops(env: Mapping[str, str]) -> Sequence[Stop]:
    """The stops of this machine; a file that cannot be read stops everything."""
    from evoclaw.wiring.oversight import stop_files

    found: dict[tuple[StopKind, str], Stop] = {}
    for file in stop_files(env):
        try:
            found |= {(stop.kind, stop.name): stop for stop in file.stops()}
        except UntrustedStopFile as problem:
            found[StopKind.ALL, ""] = Stop(StopKind.ALL, reason=str(problem))
    return list(found.values())


def convert_stops(items: JSON) -> Sequence[Stop]:
    """The stops that the service listed."""
    return msgspec.convert(items, tuple[Stop, ...])


def _option(stop: Stop) -> str:
    named = stop.kind in (StopKind.AGENT, StopKind.TOOL)
    return f"--{stop.kind} {clean(stop.name)}" if named else f"--{stop.kind}"
