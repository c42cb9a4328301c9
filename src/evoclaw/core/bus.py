"""The event bus of a run: it stamps events and passes the records to sinks, in order.

A sink that raises never ends the run.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from evoclaw.core.events import Event, Record
from evoclaw.core.ports import Sink


class Bus:
    """Stamps the events of one run and delivers the records to its sinks."""

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
        """The last number assigned; a resumed run continues to count."""
        self._sinks = sinks
        self._clock = clock
        self.failures: list[tuple[Sink, Exception]] = []
        """The errors that sinks raised, for the code that built the bus to report."""

    def publish(self, event: Event) -> Record:
        """Stamp one event and pass the record to every sink."""
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
