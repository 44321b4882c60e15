"""How many files this process may have open."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)


def raise_open_files_limit() -> None:
    """Allow as many open files as the kernel lets this process have.

    Containers often begin with 1,024 (containerd 2 sets no limit, and systemd's is that). Each connection takes one of
    them, and an agent has four for each pod.

    Where the kernel refuses, the limit stays. It takes none above the sysctl fs.nr_open, which may be lower than when
    the container was started. Source: Linux, kernel/sys.c, do_prlimit.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError) as error:
        log.warning("no more than %d files can be open at a time: %s", now, error)
