"""The studies of the benchmark, one module each: `run(context)` measures and gives back a `Section`."""

NAMES = ("memory", "classes", "designs", "invariance")
"""Those of the benchmark, in the order in which they are run; `ladders` is run by its own command."""
