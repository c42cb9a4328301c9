"""Stamps events and hands the records to sinks, in order; a sink that fails is never fatal."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from evoclaw.core.events import Event, Record
from evoclaw.core.ports import Sink


class Bus:
    """The records of one run."""

    def __init__(
        self,
        run_id: str,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = time.time,
        seq: int = 0,
    ) -> None:
        self.run_id = run_id
        self.seq = seq
        """The last number given; a resumed run goes on counting."""
        self._sinks = sinks
        self._clock = clock
        self.failures: list[tuple[Sink, Exception]] = []
        """What sinks raised; whoever built them decides what that means."""

    def publish(self, event: Event) -> Record:
        """Stamp one event and tell every sink."""
        self.seq += 1
        record = Record(self.run_id, self.seq, self._clock(), event)
        for sink in self._sinks:
            try:
                sink.receive(record)
            except Exception as error:
                self.failures.append((sink, error))
        return record


async def recorded(events: AsyncGenerator[Event, None], bus: Bus) -> AsyncGenerator[Record, None]:
    """Turn a run's events into records; closing this closes the run."""
    async with aclosing(events):
        async for event in events:
            yield bus.publish(event)
