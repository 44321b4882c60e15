"""A network of its own for a process, which a test can break in one direction or in both, or make lossy."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_numbers = itertools.count()


class Network:
    """A network namespace that is joined to this machine by one cable.

    Attributes:
        host: this machine's address, as seen from inside.
    """

    def __init__(self, name: str, number: int) -> None:
        """Nothing exists yet; see `open_network`."""
        self.name = name
        self.host = f"10.79.{number}.1"
        self._inside = f"10.79.{number}.2"

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command, to be run inside."""
        return ["ip", "netns", "exec", self.name, *command]

    def drop_outgoing(self) -> None:
        """Lose every packet from inside; answers to earlier ones still come."""
        self._filter("-A", "OUTPUT", "-o", "inside", "-j", "DROP")

    def drop_incoming(self) -> None:
        """Lose every packet to inside; what is sent still arrives."""
        self._filter("-A", "INPUT", "-i", "inside", "-j", "DROP")

    def lose(self, share: float) -> None:
        """Lose this share of packets, each way."""
        for chain, flag in (("OUTPUT", "-o"), ("INPUT", "-i")):
            chance = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
            self._filter("-A", chain, flag, "inside", *chance, "-j", "DROP")

    def mend(self) -> None:
        """Lose nothing any more."""
        self._filter("-F", "OUTPUT")
        self._filter("-F", "INPUT")

    def _filter(self, *arguments: str) -> None:
        _run(*self.wrap(["iptables", "--wait", *arguments]))

    def _make(self) -> None:
        cable = self.name[-15:]
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "inside", "netns", self.name)
        _run("ip", "address", "add", f"{self.host}/24", "dev", cable)
        _run("ip", "link", "set", cable, "up")
        for command in (
            ("address", "add", f"{self._inside}/24", "dev", "inside"),
            ("link", "set", "inside", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run(*self.wrap(["ip", *command]))


@contextmanager
def open_network() -> Iterator[Network]:
    """A network for the time of the context.

    Raises:
        RuntimeError: this process may not make one, or has no ``ip`` or ``iptables``.
    """
    number = (os.getpid() + next(_numbers)) % 250
    network = Network(f"concerto-{os.getpid()}-{number}", number)
    try:
        try:
            network._make()
            network.mend()
        except (OSError, subprocess.CalledProcessError) as error:
            detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise RuntimeError(f"no network namespace can be made: {detail}") from error
        yield network
    finally:
        subprocess.run(["ip", "netns", "delete", network.name], capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
