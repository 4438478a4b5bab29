"""Compute missing cells on one of several engines, and report progress."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vhat.checks import check_choice, check_count
from vhat.errors import InputError, MissingPackage, StoreError
from vhat.study.cell import Cell
from vhat.study.cell_progress import Display, Report, duration
from vhat.study.results import Results
from vhat.study.worker import CellCrashed, compute

__all__ = ["ENGINES", "Engine", "RunSummary", "run"]

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "dask", "ray")
Answer = tuple[Cell, str | None, str | None]
"""A cell, its result as text or None, and the message of its crash or None."""
_CONNECT_SECONDS = 20
"""Time to wait for a Dask scheduler, in seconds."""


@dataclass(frozen=True)
class RunSummary:
    """The outcome of a run.

    Attributes:
        computed: Cells computed in this run.
        kept: Number of cells that already had a result.
        crashed: Cells whose process ended without a result, with its last output; the next run tries them again.
    """

    computed: tuple[Cell, ...]
    kept: int
    crashed: dict[Cell, str] = field(default_factory=dict)


def run(
    cells: Sequence[Cell],
    out: Path,
    *,
    engine: Engine = "local",
    jobs: int = 1,
    scheduler: str | None = None,
    say: Callable[[str], None] | None = None,
) -> RunSummary:
    """Compute the cells without a result in ``out``; the numbers do not depend on the engine or on ``jobs``.

    Args:
        cells: The cells, in the order in which they are started.
        out: Directory of the study, created if it does not exist.
        engine: ``"local"`` processes, a ``"dask"`` cluster or ``"ray"``.
        jobs: Number of cells at once, each with one thread.
        scheduler: Address of a Dask scheduler or of a Ray cluster; None starts one on this machine.
        say: Called with a line after every cell and, with local processes, before each; None prints to standard error.

    Returns:
        The computed and the crashed cells.

    Raises:
        MissingPackage: When the engine is not installed.
        InputError: When the engine cannot be used as asked.
        StoreError: When ``out`` cannot be written.
    """
    check_choice("engine", engine, ENGINES)
    check_count("jobs", jobs, least=1)
    if scheduler is not None and engine == "local":
        raise InputError(f"scheduler={scheduler!r} has no use with engine='local'. Use engine='dask' or 'ray'.")
    results = Results(Path(out).absolute())
    try:
        (results.folder / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{out} cannot be made: {error.strerror}. Give another directory.") from error
    missing = results.missing(cells)
    say = say or _print
    kept = len(cells) - len(missing)
    say(f"{len(cells)} cells: {kept} have a result, {len(missing)} are to be computed.")
    display = Display(say)
    progress = _Progress(missing, say, display)
    cells_of_fit = Counter(cell.fit_key for cell in missing)
    with _engine(engine, jobs, scheduler) as client, display:
        if engine == "dask":
            answers = _from_dask(client, missing, results)
        elif engine == "ray":
            answers = _from_ray(client, missing, results, jobs)
        else:
            answers = _from_processes(missing, results, jobs, progress)
        for cell, text, crash in answers:
            # A worker on another machine cannot write here; one on this machine has written already.
            if text is not None and results.read(cell) is None:
                results.write(cell, text)
            if crash is None:
                cells_of_fit[cell.fit_key] -= 1
                if not cells_of_fit[cell.fit_key]:
                    results.drop_fit(cell)
            progress.advance(cell, crash)
    computed = tuple(cell for cell in missing if cell not in progress.crashed)
    return RunSummary(computed, kept, progress.crashed)


def _from_processes(cells: Sequence[Cell], results: Results, jobs: int, progress: _Progress) -> Iterator[Answer]:
    """Yield the answers of local processes as they finish."""
    if not cells:
        return
    from joblib import Parallel, delayed

    # Threads suffice, since each only waits for the process of its cell.
    parallel = Parallel(
        n_jobs=jobs,
        backend="threading",
        batch_size=1,
        pre_dispatch=2 * jobs,
        return_as="generator_unordered",
    )
    yield from parallel(delayed(_attempt)(cell, results.folder, progress) for cell in cells)


def _from_dask(client: Any, cells: Sequence[Cell], results: Results) -> Iterator[Answer]:
    """Yield the answers of a Dask cluster as they finish.

    Cells are submitted to the scheduler directly, because joblib computes in this process if a cluster has one worker.
    """
    from distributed import as_completed

    futures = [client.submit(_attempt, cell, results.folder, pure=False) for cell in cells]
    for done in as_completed(futures):
        yield done.result()


def _from_ray(ray: Any, cells: Sequence[Cell], results: Results, jobs: int) -> Iterator[Answer]:
    """Yield the answers of a Ray cluster as they finish, with at most ``jobs`` cells at a time.

    Cells are submitted to Ray directly, because its backend for joblib computes one job in this process, and yields
    nothing before the last cell is done.
    """
    task = ray.remote(_attempt)
    waiting = list(cells)
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(task.remote(waiting.pop(0), results.folder))
        done, running = ray.wait(running, num_returns=1)
        for answer in done:
            yield ray.get(answer)


def _attempt(cell: Cell, out: Path, progress: _Progress | None = None) -> Answer:
    """Compute a cell; a crash is returned, so that it does not stop the other cells."""
    report = None
    if progress is not None:
        progress.begin(cell)
        report = partial(progress.report, cell)
    try:
        return cell, compute(cell, out, report), None
    except CellCrashed as crash:
        return cell, None, str(crash)


@contextmanager
def _engine(engine: Engine, jobs: int, scheduler: str | None) -> Iterator[Any]:
    """Start the engine for the time of the run; yield the client of a Dask cluster, the module of Ray, or None."""
    if engine == "local":
        try:
            import joblib  # noqa: F401
        except ImportError:
            raise MissingPackage("the study runs its cells by joblib: pip install 'vhat[study]'.") from None
        yield
    elif engine == "dask":
        with _dask(jobs, scheduler) as client:
            yield client
    else:
        with _ray(jobs, scheduler) as ray:
            yield ray


@contextmanager
def _dask(jobs: int, scheduler: str | None) -> Iterator[Any]:
    """Yield a client of a Dask scheduler, or of a new cluster on this machine."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingPackage("engine='dask' needs Dask: pip install 'vhat[study]'.") from None
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=_CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {scheduler!r}: {error}") from error
        with client:
            yield client
        return
    with LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as own:
        yield own


@contextmanager
def _ray(jobs: int, scheduler: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster or started on this machine."""
    try:
        import ray
    except ImportError:
        raise MissingPackage("engine='ray' needs Ray: pip install 'ray[default]'.") from None
    cpus = None if scheduler else jobs  # the CPUs of an existing cluster cannot be set
    try:
        ray.init(address=scheduler, num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {scheduler!r}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


class _Progress:
    """Reports started and finished cells, the number of cells done, and an estimate of the remaining time.

    Args:
        cells: The cells to compute.
        say: Called with each line.
        display: Shows the running cells.
    """

    def __init__(self, cells: Sequence[Cell], say: Callable[[str], None], display: Display) -> None:
        self.crashed: dict[Cell, str] = {}
        self._say = say
        self._display = display
        self._total = len(cells)
        self._done = 0
        self._work_left = sum(map(work, cells))
        self._work_done = 0.0
        self._began = time.monotonic()

    def begin(self, cell: Cell) -> None:
        """Report that a cell has started."""
        self._say(f"{cell.key} begins")
        self._display.begin(cell.key)

    def report(self, cell: Cell, report: Report) -> None:
        """Show the progress of a running cell."""
        self._display.show(cell.key, report)

    def advance(self, cell: Cell, crash: str | None) -> None:
        """Report that a cell is done, or has crashed with the given message."""
        if crash is not None:
            self.crashed[cell] = crash
        self._display.end(cell.key)
        self._done += 1
        self._work_done += work(cell)
        self._work_left -= work(cell)
        spent = time.monotonic() - self._began
        left = "nothing"
        if self._done < self._total:
            # The same speed as so far.
            left = f"about {duration(spent * self._work_left / self._work_done)}"
        how = "done" if crash is None else f"CRASHED: {crash}"
        self._say(f"[{self._done}/{self._total}] {cell.key} {how}; {duration(spent)} so far, {left} left")


_START_SECONDS = 10.0
"""Time to start a process and compile, in seconds (measured, like the numbers below)."""
_MINIMUM_STEPS = 20_000
"""Cost of a certified minimum, in steps of training."""
_HESSIAN_STEPS = 60_000
"""Cost of the exact Hessian at 200 points, in steps of training."""
_PAPER_CG_STEPS_GRID = 40_000
"""Cost of the paper's iteration at the 20 points for d = 1, in steps of training."""
_PAPER_CG_STEPS_POINTS = 200_000
"""Its cost at the test points for d > 1, where it takes all its iterations."""
_BOOTSTRAP_FITS = 11
"""Fits of a method that refits: those to ten resamples, and the one to the data."""


def work(cell: Cell) -> float:
    """Return the approximate cost of a cell in seconds of one core; only ratios matter."""
    if cell.d == 1 and cell.version != "met":
        # Two wide hidden layers: the cost of a step has a constant part.
        seconds_per_step = 1e-2 + 3.6e-5 * cell.n
    else:
        seconds_per_step = 1e-7 * cell.n * (cell.d + 10)
    fits = 1 if cell.method in ("proposed", "paper-cg") else _BOOTSTRAP_FITS
    training = _MINIMUM_STEPS if cell.version == "met" else cell.steps
    answers = 0
    if cell.method == "paper-cg":
        answers = _PAPER_CG_STEPS_GRID if cell.d == 1 else _PAPER_CG_STEPS_POINTS
    elif cell.version == "met" and cell.method == "proposed":
        answers = _HESSIAN_STEPS
    return _START_SECONDS + seconds_per_step * (fits * training + answers)


def _print(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)
