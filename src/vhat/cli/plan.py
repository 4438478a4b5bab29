"""The command ``vhat plan``."""

from __future__ import annotations

from vhat.cli.application import command
from vhat.cli.options import Data, Json, Model, Separator
from vhat.cli.terminal import facts, print_json, show


@command("vhat plan model new.csv")
def plan(directory: Model, data: Data, separator: Separator = None, json: Json = False) -> None:
    """Show how the intervals of a table would be computed, with memory and time, without computing them."""
    from vhat.cli import saved_models
    from vhat.cli.predict_stream import chunk_rows
    from vhat.estimator.sketch_of import refuse_sketched
    from vhat.linalg.solvers import choose
    from vhat.tables.files import open_table

    table = open_table(data, separator)
    network = saved_models.load(directory)
    refuse_sketched(network, "vhat plan")
    saved_models.input_columns(network, table)
    rows = table.count()
    chunk = chunk_rows(network)
    problem = network.fitted_.problem
    with problem.scope():
        chosen = choose(problem, rows * problem.outputs)
    if json:
        print_json(
            {
                "rows": rows,
                "chunk_rows": chunk,
                "solver": chosen.solver.name,
                "memory_bytes": chosen.memory,
                "gradients": chosen.gradients,
                "cpu_seconds": chosen.seconds,
                "reason": chosen.reason,
            }
        )
        return
    chunks = -(-rows // chunk)  # rounded up
    show(
        facts(
            f"Plan for {rows:,} rows of {table.name}",
            {
                "solver": repr(chosen.solver),
                "memory": f"{chosen.memory / 1e6:,.0f} MB, for any number of rows",
                "cost": f"{chosen.duration} of CPU time",
                "why": chosen.reason,
                "chunks": f"{chunks:,} of at most {chunk:,} rows" if chunks > 1 else "the whole table at once",
            },
        )
    )
