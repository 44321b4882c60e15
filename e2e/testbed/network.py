"""A network of its own for a process, which a test can break in one direction or in both, or make lossy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# The third part of a network's address, and its number: no two networks of this machine share it
_NUMBERS = range(250)


class Network:
    """A network namespace that is joined to this machine by one cable.

    Attributes:
        host: this machine's address, as seen from inside.
    """

    def __init__(self, number: int) -> None:
        """Nothing exists yet; see `open_network`."""
        self.name = f"concerto-{number}"
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

    def _claim(self) -> bool:
        """Make the namespace; False if the number is taken: the kernel gives a name only once."""
        made = subprocess.run(["ip", "netns", "add", self.name], capture_output=True, text=True, check=False)
        if made.returncode and "File exists" not in made.stderr:
            raise RuntimeError(made.stderr.strip())
        return made.returncode == 0

    def _connect(self) -> None:
        _run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "inside", "netns", self.name)
        _run("ip", "address", "add", f"{self.host}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        for command in (
            ("address", "add", f"{self._inside}/24", "dev", "inside"),
            ("link", "set", "inside", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run(*self.wrap(["ip", *command]))

    def _remove(self) -> None:
        # The cable first: the namespace lives on while a process is inside, and its cable would take up the address
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


@contextmanager
def open_network() -> Iterator[Network]:
    """A network for the time of the context.

    Raises:
        RuntimeError: this process may not make one, or has no ``ip`` or ``iptables``.
    """
    try:
        network = next((network for network in map(Network, _NUMBERS) if network._claim()), None)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"no network namespace can be made: {error}") from error
    if network is None:
        raise RuntimeError("no network namespace can be made: earlier ones have all numbers (ip netns list)")
    try:
        try:
            network._connect()
            network.mend()
        except (OSError, subprocess.CalledProcessError) as error:
            detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise RuntimeError(f"no network namespace can be made: {detail}") from error
        yield network
    finally:
        network._remove()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
