"""Asks an HTTP server at a steady rate: ``python -m e2e.compare.http_load ADDRESS PORT``, until SIGTERM.

A request is sent when it is due, whether or not those before it were answered, and its time counts from then: a server
that is slow does not make the load lighter. Prints an empty line when it begins. At its end it prints a line for each
request: when it was due (seconds since the epoch), and the milliseconds until its answer was complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

_TIMEOUT_SECONDS = 10.0
_REAL_TIME_PRIORITY = 10


class Load:
    """Requests to one service.

    Attributes:
        answered: when each answered request was due, seconds since the epoch, and the milliseconds that it took.
        failed: when each request without a whole answer was due.
    """

    def __init__(
        self, address: Callable[[], str | None], port: int, rate: Callable[[float], float], path: str = "/"
    ) -> None:
        """Nothing is sent before `run`.

        Args:
            address: where the next request goes; None: nobody can answer it.
            port: of every address.
            rate: requests per second, so many seconds after the begin.
            path: that is asked for.
        """
        self.answered: list[tuple[float, float]] = []
        self.failed: list[float] = []
        self._address, self._port, self._rate, self._path = address, port, rate, path

    async def run(self, stopped: asyncio.Event) -> None:
        """Send requests until told to stop, and wait for the last answers."""
        clock, began_at = time.monotonic, time.time() - time.monotonic()
        due = began = clock()
        async with asyncio.TaskGroup() as requests:
            while not stopped.is_set():
                requests.create_task(self._ask(due, began_at))
                due += 1.0 / self._rate(due - began)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), max(0.0, due - clock()))

    async def _ask(self, due: float, offset: float) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                if (address := self._address()) is None:
                    raise OSError("no pod is ready")
                reader, writer = await asyncio.open_connection(address, self._port)
                try:
                    writer.write(f"GET {self._path} HTTP/1.0\r\n\r\n".encode())
                    whole = await reader.read()
                finally:
                    writer.close()
            if b" 200 " not in whole.split(b"\r\n", 1)[0]:
                raise OSError(f"not answered with 200: {whole[:80]!r}")
        except (OSError, TimeoutError):
            self.failed.append(due + offset)
            return
        self.answered.append((due + offset, 1000.0 * (time.monotonic() - due)))


async def until_stopped(load: Load) -> None:
    """Print an empty line, and send requests until SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(flush=True)
    await load.run(stopped)


def before_all_others() -> None:
    """Run before all others on this CPU: the time until an answer is seen is not to count as the server's."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_REAL_TIME_PRIORITY))
    except OSError:  # the kernel gives this cgroup no real time
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def main() -> int:
    """The command line; the exit status is 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compare.http_load", description=(__doc__ or "").split(":")[0])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--per-second", type=float, default=40.0)
    chosen = parser.parse_args()
    before_all_others()
    load = Load(lambda: chosen.address, chosen.port, lambda _: chosen.per_second)
    asyncio.run(until_stopped(load))
    for at, milliseconds in load.answered:
        print(f"{at:.3f} {milliseconds:.3f}")
    if load.failed:
        print(f"{len(load.failed)} requests failed", file=sys.stderr)
    return 1 if load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
