"""The lease on a chat channel: of the orchestrators that share a store, one receives its messages.

Telegram ends the older of two requests for updates, so that two orchestrators would cut each other
off; a mailbox would be read twice. Answers need no lease: each is claimed when it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.runs.scheduler import current_process_identity, is_process_dead
from evoclaw.store.channels import ChannelStore

logger = logging.getLogger(__name__)


class ReceiverLease:
    """The right of this process to receive the messages of one channel.

    A message that two processes receive while a lease changes hands starts one run: its id is
    stored before it is answered.
    """

    def __init__(self, channel: str, store: ChannelStore, lease_s: float) -> None:
        """Prepare to claim it.

        Args:
            channel: The name of the channel.
            store: The store that the orchestrators share.
            lease_s: Seconds after which another process takes over from one that died.
        """
        self._channel, self._store, self._lease_s = channel, store, lease_s
        self._holder = current_process_identity()

    async def try_acquire(self) -> bool:
        """Claim or renew the lease; False if another process has it.

        That of a process of this machine that is certainly dead is not waited for.
        """
        if await self._claim():
            return True
        holder = await self._store.receiver(self._channel)
        if not is_process_dead(holder):
            return False
        await self._store.release_receiver(self._channel, holder)
        return await self._claim()

    async def _claim(self) -> bool:
        return await self._store.claim_receiver(self._channel, self._holder, self._lease_s)

    async def acquire(self) -> None:
        """Wait until this process has the lease."""
        while True:
            if await self.try_acquire():
                return
            await asyncio.sleep(self._lease_s / 3)

    async def hold(self, work: Coroutine[None, None, None]) -> None:
        """Do some work, and renew the lease meanwhile; the work is cancelled if that fails."""
        working, renewing = asyncio.create_task(work), asyncio.create_task(self._renew())
        both = (working, renewing)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        for task in both:
            if not task.cancelled():
                task.result()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            if not await self.try_acquire():
                logger.warning("channel %s: another orchestrator took it over", self._channel)
                return

    async def release(self) -> None:
        """Let another process receive at once."""
        try:
            await self._store.release_receiver(self._channel, self._holder)
        except EvoClawError as problem:
            logger.warning(
                "channel %s: not released, so that another orchestrator takes over in %g s: %s",
                self._channel, self._lease_s, problem,
            )  # fmt: skip
