"""How the parts of the process run: what may fail and is repeated, and what ends the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

Run = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """The tasks without which the process is of no use: the end of one of them is the end of the process.

    Attributes:
        failed: whether a task ended by itself.
    """

    def __init__(self, end_process: Callable[[], None]) -> None:
        """No task yet.

        Args:
            end_process: called when a task ends by itself. Half an operator must not go on, and the kubelet starts it
                afresh.
        """
        self.failed = False
        self._end_process = end_process
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, name: str, run: Run) -> None:
        """Start a task that is to run until `stop`."""
        task = asyncio.create_task(run(), name=name)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)

    def problem(self) -> str | None:
        """For the liveness probe: which tasks have ended; None when all run."""
        ended = [task.get_name() for task in self._tasks if task.done()]
        return f"ended: {', '.join(ended)}" if ended else None

    async def stop(self) -> None:
        """Cancel every task and wait for their ends; the leader gives back its Lease here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self.failed = True
        logger.critical("%s ended; the operator exits", task.get_name(), exc_info=task.exception())
        self._end_process()


async def keep_running(name: str, run: Run, pause_seconds: float = 5.0) -> None:
    """Run a part that placement does not depend on: an error in it costs a pause, and not the scheduler."""
    while True:
        try:
            return await run()
        except Exception:
            logger.exception("%s was stopped by an internal error; it starts again in %.0f s", name, pause_seconds)
            await asyncio.sleep(pause_seconds)
