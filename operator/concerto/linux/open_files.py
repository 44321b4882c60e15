"""How many files this process may have open."""

from __future__ import annotations

import resource


def raise_open_files_limit() -> None:
    """Allow as many open files as the kernel lets this process have.

    Containers often begin with 1,024 (containerd 2 sets no limit, and systemd's is that). Each connection takes one of
    them, and an agent has four for each pod.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
