"""Plays simulated nodes until it is stopped: ``python -m e2e.testbed.hollow --nodes 100 --kubeconfig FILE``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from pathlib import Path

from concerto.api.quantities import whole
from concerto.kube import ClusterConfig
from e2e.testbed.hollow.fleet import open_fleet
from e2e.testbed.hollow.objects import NodeShape
from e2e.testbed.hollow.pinning import MachineShape
from e2e.testbed.hollow.settings import HollowSettings

_PR_SET_PDEATHSIG = 1


_GRACE_SECONDS = 5
"""For the removal of the nodes after the parent's end, which may have ended the API server with it."""


async def play(config: ClusterConfig, settings: HollowSettings, *, keep: bool) -> None:
    """Runs a fleet until SIGINT or SIGTERM, and removes it unless it is to be kept."""
    playing = asyncio.ensure_future(_play(config, settings, keep=keep))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await playing


async def _play(config: ClusterConfig, settings: HollowSettings, *, keep: bool) -> None:
    async with open_fleet(config, settings, keep=keep):
        print(f"{settings.count} simulated nodes are ready", flush=True)
        await asyncio.Event().wait()


def end_with(parent: int) -> None:
    """End this process soon after that parent has ended, whatever it waits for then.

    The kernel sends SIGALRM when the parent ends. It cannot be sent for one that has ended before.
    """

    def on_end(number: int, frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_GRACE_SECONDS)  # the next one kills
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, on_end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGALRM)
    if os.getppid() != parent:
        raise SystemExit(f"the process that started this one ({parent}) has ended")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.testbed.hollow", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--kubeconfig", type=Path, help="an administrator's; $KUBECONFIG and so on by default")
    parser.add_argument("--prefix", default="hollow", help="of the nodes' names")
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--memory", default="8Gi")
    parser.add_argument("--max-pods", type=int, default=110)
    parser.add_argument("--zones", type=int, default=0, help="deal the nodes out to so many zones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lease-seconds", type=float, help="how often each Lease is renewed")
    parser.add_argument("--keep", action="store_true", help="leave the objects behind at the end")
    parser.add_argument("--kinds", action="store_true", help="measure what pods cost by kind, as real agents do")
    parser.add_argument("--api-only", action="store_true", help="mere objects: pods bound to them are left alone")
    parser.add_argument(
        "--machine",
        metavar="SxCxT",
        help="publish CPUs: so many sockets, cores of each, threads of each; answer bindings",
    )
    parser.add_argument("--mute", action="store_true", help="with --machine: leave bindings unanswered")
    parser.add_argument(
        "--with-parent", metavar="PID", type=int, help="end when the process that started this one ends"
    )
    arguments = parser.parse_args()
    if arguments.with_parent is not None:
        end_with(arguments.with_parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    machine = arguments.machine
    settings = HollowSettings(
        count=arguments.nodes,
        prefix=arguments.prefix,
        shape=NodeShape(arguments.cores, whole(arguments.memory), arguments.max_pods, arguments.zones),
        seed=arguments.seed,
        lease_seconds=arguments.lease_seconds,
        measures_kinds=arguments.kinds,
        api_only=arguments.api_only,
        machine=MachineShape(*map(int, machine.split("x")), answers=not arguments.mute) if machine else None,
    )
    asyncio.run(play(ClusterConfig.load(arguments.kubeconfig), settings, keep=arguments.keep))


if __name__ == "__main__":
    main()
