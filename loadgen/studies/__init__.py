"""The studies of the benchmark, one module each: `run(context)` measures and gives back a `Section`."""

NAMES = ("memory", "classes", "designs", "invariance", "ladders")
"""In the order in which they are run."""
