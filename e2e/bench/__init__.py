"""`make bench`: figures, each beside its peer's from the same run, into build/bench.json."""
