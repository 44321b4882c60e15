"""`concerto simulate`: run a scenario in virtual time and say what came of it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

from concerto.api.arguments import whole_number
from concerto.kube.kubeconfig import add_cluster_arguments
from concerto.simulation.scheduling import experiments, scenario
from concerto.simulation.scheduling.policies import registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.description = "Run a scenario in a virtual-time cluster that runs Concerto's own code."
    parser.epilog = "concerto simulate autoscale runs traffic and traces through the autoscaler: see its own --help."
    parser.add_argument("scenario", nargs="?", help="a YAML file, or the name of a built-in scenario (see --list)")
    parser.add_argument("--list", action="store_true", help="list the built-in scenarios and policies")
    parser.add_argument("--policy", action="append", default=[], metavar="NAME", help="in place of the scenario's own")
    parser.add_argument("--seeds", type=whole_number(1, 10_000, "20"), metavar="N", help="runs of each policy")
    parser.add_argument("--json", metavar="OUT", help="write all figures to this file (- for standard output)")
    parser.add_argument("--plots", metavar="DIR", help="write plots to this directory")
    parser.add_argument(
        "--workers", type=whole_number(1, 1024, "2"), metavar="N", help="processes (default: one for each CPU)"
    )
    what_if = parser.add_argument_group("what if", "replay a real cluster's pods under a profile")
    what_if.add_argument("--from-cluster", action="store_true", help="take the present cluster, as kubectl reads it")
    add_cluster_arguments(what_if)
    what_if.add_argument("--dump", metavar="FILE", help="take what `kubectl get nodes,pods,ncap -A -o yaml` printed")
    what_if.add_argument("--profile", metavar="FILE", help="SchedulingProfile to replay under (default: Concerto's)")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if args.list:
        for name in scenario.built_in_names():
            print(f"{name:24} {scenario.load(name).description}")
        print(f"policies: {registry.EXPECTED}")
        return 0
    if (problem := _contradiction(args)) is not None:
        return _refuse(problem)
    unknown = [name for name in args.policy if not registry.is_policy(name)]
    if unknown:
        return _refuse(f"--policy {unknown[0]}: expected one of {registry.EXPECTED}")
    try:
        # before it has computed for a minute
        make_room(args.json, args.plots)
    except OSError as error:
        return _refuse(f"{error.filename} cannot be written: {error.strerror}")
    if args.from_cluster or args.dump:
        from concerto.simulation.studies import what_if

        return what_if.run(args)
    if not args.scenario:
        return _refuse("name a scenario: a file, or one of " + ", ".join(scenario.built_in_names()))
    try:
        wanted = scenario.load(args.scenario)
    except scenario.ScenarioError as error:
        return _refuse(str(error))
    needs = {"rich": args.json != "-", "matplotlib": bool(args.plots)}
    lacking = [module for module, needed in needs.items() if needed and importlib.util.find_spec(module) is None]
    if lacking:
        needed = " and ".join(lacking)
        return _refuse(f"to show results this needs {needed}: pip install '.[plots]' in Concerto's folder, or --json -")
    outcomes = experiments.run_all(experiments.tasks_of(wanted, args.policy, args.seeds), args.workers)
    document = experiments.document(wanted, outcomes)
    if args.json == "-":
        print(json.dumps(document, indent=1))
    else:
        from concerto.simulation.scheduling import report

        report.print_table(document)
        if args.json:
            Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plots:
        from concerto.simulation.scheduling import report

        for path in report.write_plots(Path(args.plots), wanted.name, outcomes):
            print(path)
    return 0


def _contradiction(args: argparse.Namespace) -> str | None:
    """What is wrong with options that would have no effect; None if nothing is."""
    if args.from_cluster and args.dump:
        return "--from-cluster and --dump both name what is replayed: give one of them"
    if (args.kubeconfig or args.context) and not args.from_cluster:
        return "--kubeconfig and --context go with --from-cluster"
    if not (args.from_cluster or args.dump):
        return "--profile goes with --from-cluster or --dump" if args.profile else None
    if args.scenario:
        return f"{args.scenario}: no scenario is run with --from-cluster or --dump"
    if args.policy or args.seeds or args.plots or args.workers:
        return "--policy, --seeds, --plots and --workers go with a scenario, not with --from-cluster or --dump"
    return None


def make_room(json_file: str | None, plots: str | None) -> None:
    """Make the folders that results go to, and see that the file can be written.

    Raises:
        OSError: it cannot be, or they cannot be made.
    """
    if json_file and json_file != "-":
        Path(json_file).parent.mkdir(parents=True, exist_ok=True)
        with Path(json_file).open("a"):
            pass
    if plots:
        Path(plots).mkdir(parents=True, exist_ok=True)


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2
