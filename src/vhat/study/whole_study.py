"""A whole study: compute the missing cells, then make all outputs from the stored results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vhat.study import regions, selection
from vhat.study.cell import Cell
from vhat.study.experiments import Plan, in_order
from vhat.study.protocol import make_method
from vhat.study.results import Results, write_whole
from vhat.study.run import Engine, run
from vhat.study.summary import gaps, summarise, table_rows
from vhat.study.tables import to_csv, to_latex, to_markdown

__all__ = ["conduct", "write_outputs"]

_FIGURE_KINDS: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")
"""File types of the figures."""


def conduct(
    plans: Sequence[Plan],
    out: Path,
    *,
    engine: Engine = "local",
    jobs: int = 1,
    scheduler: str | None = None,
    compute: bool = True,
) -> bool:
    """Compute the missing cells of all plans, and write the tables and figures.

    Args:
        plans: The tables and figures.
        out: Directory of the results.
        engine: ``"local"``, ``"dask"`` or ``"ray"``, see :func:`vhat.study.run.run`.
        jobs: Number of cells at once.
        scheduler: Address of a Dask scheduler or of a Ray cluster; None starts one on this machine.
        compute: Whether to compute missing cells; otherwise outputs are made from the stored ones.

    Returns:
        Whether every cell has a result.
    """
    cells = in_order(plans)
    _check_methods(cells)
    stopped = False
    if compute:
        try:
            run(cells, out, engine=engine, jobs=jobs, scheduler=scheduler)
        except KeyboardInterrupt:
            stopped = True
            print("stopped; what is done is kept, and the same command goes on from there.", file=sys.stderr)
    for plan in plans:
        for path in write_outputs(plan, out):
            print(path)
    left = Results(Path(out)).missing(cells)
    if left:
        print(f"{len(left)} of {len(cells)} cells are missing; every output lists its own.", file=sys.stderr)
    return not left and not stopped


def _check_methods(cells: Sequence[Cell]) -> None:
    """Refuse unknown methods before anything is computed.

    Raises:
        InputError: When a cell has an unknown method.
    """
    one_cell_per_method = {cell.method: cell for cell in cells}
    for cell in one_cell_per_method.values():
        make_method(cell)


def write_outputs(plan: Plan, out: Path) -> list[Path]:
    """Write the outputs of a plan from the stored results, and return their paths."""
    results = Results(Path(out))
    name = plan.experiment
    results.folder.mkdir(parents=True, exist_ok=True)
    cells = plan.cells()
    missing = gaps(cells, results)
    if name == "figure1":
        text = f"Median widths and coverage of the truth.\n\n{regions.to_markdown(cells, results)}{missing.notes()}\n"
        return [_write(results.folder / f"{name}.md", text), *_write_figures(plan, results)]
    if name == "figure2":
        written = [_write(results.folder / f"{name}.csv", to_csv(summarise(cells, results)))]
        scores = selection.to_markdown(selection.choose(cells, results))
        text = f"Mean Winkler score on the validation set, the smallest in bold.\n\n{scores}{missing.notes()}\n"
        return [*written, _write(results.folder / "selection.md", text), *_write_figures(plan, results)]
    rows = table_rows(cells, results)
    return [
        _write(results.folder / f"{name}.csv", to_csv(rows)),
        _write(results.folder / f"{name}.md", to_markdown(rows, missing)),
        _write(results.folder / f"{name}.tex", to_latex(rows, missing)),
    ]


def _write_figures(plan: Plan, results: Results) -> list[Path]:
    """Draw a figure for each version, and return the paths of the files."""
    from vhat.study.figure_frame import save
    from vhat.study.figures import bands
    from vhat.study.trade_off import trade_off

    written = []
    for version in plan.versions:
        cells = [cell for cell in plan.cells() if cell.version == version and cell.truth == "matern"]
        if not cells:
            continue
        figure = bands(cells, results) if plan.experiment == "figure1" else trade_off(summarise(cells, results))
        for kind in _FIGURE_KINDS:
            path = results.folder / f"{plan.experiment}-{version}.{kind}"
            write_whole(path, save(figure, kind))
            written.append(path)
    return written


def _write(path: Path, text: str) -> Path:
    """Write a text file, and return its path."""
    write_whole(path, text.encode())
    return path
