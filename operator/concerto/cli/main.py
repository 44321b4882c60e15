"""The `concerto` command. Each subcommand imports only what it needs, so that an agent stays small."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class _Command:
    """A subcommand: the module that has `add_arguments(parser)` and `run(args) -> int`, and one line of help."""

    module: str
    help: str


COMMANDS = {
    "operator": _Command("concerto.controllers.operator", "run the control plane: scheduling, pinning, autoscaling"),
    "explain": _Command("concerto.cli.explain", "say why a pod is where it is, or why a target has its replicas"),
    "top": _Command("concerto.cli.top", "show what nodes can take and how loaded they are"),
    "agent": _Command("concerto_agent.main", "measure this node and publish its capacity"),
    "simulate": _Command("concerto.cli.simulate", "run a scenario on a virtual-time cluster"),
    "evaluate-autoscaling": _Command(
        "concerto.cli.evaluate_autoscaling", "compare autoscaling policies over traffic patterns and start-up times"
    ),
    "migrate-trimaran": _Command(
        "concerto.cli.migrate_trimaran", "turn a KubeSchedulerConfiguration with Trimaran's plugins into profiles"
    ),
    "classify": _Command("concerto.cli.classify", "say which workload type a program is, from measured times"),
}

TWO_WORDS: dict[tuple[str, ...], str] = {("simulate", "autoscale"): "evaluate-autoscaling"}
"""What is also called by two words."""

_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C has ended, as shells have it."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if (name := TWO_WORDS.get((*arguments[:2],))) is not None:
        arguments = [name, *arguments[2:]]
    parser = argparse.ArgumentParser(prog="concerto", description="Schedule pods onto measured capacity.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            module = _import(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of the pipe (such as head) has closed it; discard what is left at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _import(name: str) -> ModuleType:
    """Modules stay: to look for garbage among them costs each start a tenth of a second of CPU, and more ever after."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
