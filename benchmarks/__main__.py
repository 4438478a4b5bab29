"""Measure, print and write: ``python -m benchmarks [--only NAME] [--quick] [--clock cpu] [--cores K] [--uci DIR]``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

HERE = Path(__file__).parent
Only = Annotated[list[str] | None, typer.Option(help="Rows to measure, by name or how it begins. The rest is kept.")]
Quick = Annotated[bool, typer.Option(help="Small sizes: checks that everything runs, writes to .cache/quick.")]
Clock = Annotated[str, typer.Option(help="wall, or cpu: processor time, for a busy machine.")]
Cores = Annotated[int, typer.Option(help="Cores to use; 0 for all.")]
Names = Annotated[bool, typer.Option("--list", help="List the rows and end.")]
Uci = Annotated[str | None, typer.Option(help="Folder of UCI tables; without it their rows are left out.")]
Draw = Annotated[bool, typer.Option(help="Measure nothing: print and draw what is kept.")]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Only = None,
    quick: Quick = False,
    clock: Clock = "wall",
    cores: Cores = 0,
    names: Names = False,
    draw: Draw = False,
    uci: Uci = None,
) -> None:
    """Measure the rows one after another; each is written as soon as it is done."""
    if cores:  # before any framework starts its threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import benchmarks.rows  # noqa: F401  (registers them)
    from benchmarks import report
    from benchmarks.registry import ROWS, Run
    from benchmarks.timing import CLOCKS, Stopwatch

    console = Console(width=None if sys.stdout.isatty() else 110)  # a pipe has no width of its own
    titles = {name: row.title for name, row in ROWS.items()}
    titles["growth"] = "cost against points, rows and parameters, for the plot"
    if names:
        for name, title in titles.items():
            console.print(f"{name:20} {title}", highlight=False, soft_wrap=True)
        return
    if clock not in CLOCKS:
        raise typer.BadParameter(f"{clock!r} is neither {' nor '.join(CLOCKS)}.", param_hint="--clock")
    chosen = [] if draw else [name for name in titles if not only or name.startswith(tuple(only))]
    chosen = [name for name in chosen if uci is not None or not name.startswith("uci-")]
    if only and not chosen:
        raise typer.BadParameter(f"no row begins with {', '.join(only)}; see --list.", param_hint="--only")
    folder = HERE / ".cache" / "quick" if quick else HERE
    folder.mkdir(parents=True, exist_ok=True)
    results = report.Results(folder / "results.json")
    for number, name in enumerate(chosen, 1):
        results.configuration = report.configuration(clock, results.configuration)
        with console.status(name) as status:
            watch = Stopwatch(clock, lambda note, name=name: status.update(f"{name}: {note}"))
            run = Run(quick, watch, uci, results.rows.get(name, {}))
            _measure(name, run, results, console, f"{number}/{len(chosen)}")
        results.write(list(titles))
    _publish(results, folder, console)


def _measure(name: str, run: Any, results: Any, console: Console, number: str) -> None:
    """One row, or the curves of the plot."""
    from benchmarks import growth, report
    from benchmarks.registry import ROWS

    if name == "growth":
        results.growth = growth.measure(run)
        return
    began = time.monotonic()
    found = ROWS[name].record(run)
    minutes = (time.monotonic() - began) / 60
    where = {key: results.configuration[key] for key in ("date", "processor")}
    results.rows[name] = found | where | {"clock": run.watch.name, "minutes": minutes}
    console.print(f"[dim]{number}[/] ", end="")
    report.print_row(console, found)


def _publish(results: Any, folder: Path, console: Console) -> None:
    """Print the table, write the Markdown, draw the plot."""
    from benchmarks import growth, report, tables

    console.print(report.table(results))
    (folder / "results.md").write_text(report.markdown(results))
    if shown := tables.markdown(results.rows):
        (folder / "tables.md").write_text(shown)
    if results.growth:
        growth.plot(results.growth, folder / "growth.png")
        for panel, powers in growth.slopes(results.growth).items():
            text = ", ".join(f"{growth.CURVES[curve]} {power:.2f}" for curve, power in powers.items())
            console.print(f"growth with {panel}, as a power: {text}", highlight=False)
    console.print(f"written: {folder / 'results.json'} and results.md" + (", growth.png" if results.growth else ""))


app()
