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

_TIMEOUT_SECONDS = 10.0
_REAL_TIME_PRIORITY = 10


class Load:
    """Requests to one server.

    Attributes:
        answered: when each answered request was due, seconds since the epoch, and the milliseconds that it took.
        failed: requests without a whole answer.
    """

    def __init__(self, address: str, port: int, per_second: float) -> None:
        """Nothing is sent before `run`."""
        self.answered: list[tuple[float, float]] = []
        self.failed = 0
        self._address, self._port, self._interval = address, port, 1.0 / per_second

    async def run(self, stopped: asyncio.Event) -> None:
        """Send requests until told to stop, and wait for the last answers."""
        clock, began_at = time.monotonic, time.time() - time.monotonic()
        due = clock()
        async with asyncio.TaskGroup() as requests:
            while not stopped.is_set():
                requests.create_task(self._ask(due, began_at))
                due += self._interval
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), max(0.0, due - clock()))

    async def _ask(self, due: float, offset: float) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(self._address, self._port)
                try:
                    writer.write(b"GET / HTTP/1.0\r\n\r\n")
                    whole = await reader.read()
                finally:
                    writer.close()
            if b" 200 " not in whole.split(b"\r\n", 1)[0]:
                raise OSError(f"not answered with 200: {whole[:80]!r}")
        except (OSError, TimeoutError):
            self.failed += 1
            return
        self.answered.append((due + offset, 1000.0 * (time.monotonic() - due)))


async def _main(address: str, port: int, per_second: float) -> Load:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    load = Load(address, port, per_second)
    print(flush=True)
    await load.run(stopped)
    return load


def main() -> int:
    """The command line; the exit status is 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compare.http_load", description=(__doc__ or "").split(":")[0])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--per-second", type=float, default=40.0)
    chosen = parser.parse_args()
    # Before all others on its CPU: the time until an answer is seen is not to count as the server's
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_REAL_TIME_PRIORITY))
    except OSError:  # the kernel gives this cgroup no real time
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    load = asyncio.run(_main(chosen.address, chosen.port, chosen.per_second))
    for at, milliseconds in load.answered:
        print(f"{at:.3f} {milliseconds:.3f}")
    if load.failed:
        print(f"{load.failed} requests failed", file=sys.stderr)
    return 1 if load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
