"""A study from beginning to end: compute what is missing, then make every output from what there is."""

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

_PICTURES: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")


def conduct(
    plans: Sequence[Plan],
    out: Path,
    *,
    engine: Engine = "local",
    jobs: int = 1,
    scheduler: str | None = None,
    compute: bool = True,
) -> bool:
    """Compute the cells of all plans that are missing, and write the tables and figures.

    Args:
        plans: What is asked for.
        out: The directory of the results.
        engine: As for :func:`vhat.study.run`, like the next two.
        jobs: As there.
        scheduler: As there.
        compute: Whether to compute what is missing; otherwise outputs are made from what there is.

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
    """Refuse a method that there is not before anything is computed."""
    for method in {cell.method: cell for cell in cells}.values():
        make_method(method)


def write_outputs(plan: Plan, out: Path) -> list[Path]:
    """Write the outputs of a plan from the results that there are, and return their paths."""
    results, name = Results(Path(out)), plan.experiment
    results.folder.mkdir(parents=True, exist_ok=True)
    cells = plan.cells()
    missing = gaps(cells, results)
    if name == "figure1":
        text = f"Median widths and coverage of the truth.\n\n{regions.to_markdown(cells, results)}{missing.notes()}\n"
        return [_write(results.folder / f"{name}.md", text), *_write_figures(plan, results)]
    if name == "figure2":
        written = [_write(results.folder / f"{name}.csv", to_csv(summarise(cells, results)))]
        chosen = selection.to_markdown(selection.choose(cells, results))
        text = f"Mean Winkler score on the validation set, the smallest in bold.\n\n{chosen}{missing.notes()}\n"
        return [*written, _write(results.folder / "selection.md", text), *_write_figures(plan, results)]
    rows = table_rows(cells, results)
    return [
        _write(results.folder / f"{name}.csv", to_csv(rows)),
        _write(results.folder / f"{name}.md", to_markdown(rows, missing)),
        _write(results.folder / f"{name}.tex", to_latex(rows, missing)),
    ]


def _write_figures(plan: Plan, results: Results) -> list[Path]:
    """Draw the figure of each version apart."""
    from vhat.study.figure_frame import save
    from vhat.study.figures import bands
    from vhat.study.trade_off import trade_off

    written = []
    for version in plan.versions:
        cells = [cell for cell in plan.cells() if cell.version == version and cell.truth == "matern"]
        if not cells:
            continue
        figure = bands(cells, results) if plan.experiment == "figure1" else trade_off(summarise(cells, results))
        for kind in _PICTURES:
            path = results.folder / f"{plan.experiment}-{version}.{kind}"
            write_whole(path, save(figure, kind))
            written.append(path)
    return written


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode())
    return path
