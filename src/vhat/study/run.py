"""Compute the cells that are missing, by one engine or another, and say how far it is."""

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

__all__ = ["ENGINES", "Engine", "Ran", "run"]

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "dask", "ray")


@dataclass(frozen=True)
class Ran:
    """What a run did.

    Attributes:
        computed: Cells computed now.
        kept: How many had a result already.
        crashed: Cells whose process ended without a result, with what it said; the next run tries them again.
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
) -> Ran:
    """Compute the cells that have no result in ``out``; the numbers do not depend on anything else.

    Args:
        cells: In the order in which they are to be begun.
        out: The directory of the study, made where it does not exist.
        engine: ``"local"`` processes, a ``"dask"`` cluster or ``"ray"``.
        jobs: How many cells at once, each with one thread.
        scheduler: The address of a Dask scheduler or of a Ray cluster; None starts one on this machine.
        say: Where a line goes after every cell, and where cells run on this machine before each; None prints to
            standard error.

    Returns:
        What was computed, and what crashed.

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
    sharing = Counter(cell.fit_key for cell in missing)
    with _engine(engine, jobs, scheduler) as client, display:
        if engine == "dask":
            answers = _from_dask(client, missing, results)
        elif engine == "ray":
            answers = _from_ray(client, missing, results, jobs)
        else:
            answers = _from_processes(missing, results, jobs, progress)
        for cell, text, crash in answers:
            if text is not None and results.read(cell) is None:
                results.write(cell, text)
            if crash is None:
                sharing[cell.fit_key] -= 1
                if not sharing[cell.fit_key]:
                    results.drop_fit(cell)
            progress.advance(cell, crash)
    return Ran(tuple(cell for cell in missing if cell not in progress.crashed), kept, progress.crashed)


def _from_processes(
    cells: Sequence[Cell], results: Results, jobs: int, progress: _Progress
) -> Iterator[tuple[Cell, str | None, str | None]]:
    """Yield each cell with its result, or with what its process said when it crashed, as they come."""
    if not cells:
        return
    from joblib import Parallel, delayed

    # Threads that wait: each cell is a process of its own already.
    parallel = Parallel(
        n_jobs=jobs,
        backend="threading",
        batch_size=1,
        pre_dispatch=2 * jobs,
        return_as="generator_unordered",
    )
    yield from parallel(delayed(_attempt)(cell, results.folder, progress) for cell in cells)


def _from_dask(client: Any, cells: Sequence[Cell], results: Results) -> Iterator[tuple[Cell, str | None, str | None]]:
    """Yield what a cluster computes, as it comes.

    Cells are given to the scheduler itself: joblib computes in this process where a cluster has one worker.
    """
    from distributed import as_completed

    futures = [client.submit(_attempt, cell, results.folder, pure=False) for cell in cells]
    for done in as_completed(futures):
        yield done.result()


def _from_ray(
    ray: Any, cells: Sequence[Cell], results: Results, jobs: int
) -> Iterator[tuple[Cell, str | None, str | None]]:
    """Yield what a Ray cluster computes, as it comes, at most ``jobs`` cells at a time.

    Cells are given to Ray itself: its backend for joblib computes one job in this process, and yields nothing before
    the last cell is done.
    """
    task = ray.remote(_attempt)
    left = list(cells)
    running: list[Any] = []
    while left or running:
        while left and len(running) < jobs:
            running.append(task.remote(left.pop(0), results.folder))
        done, running = ray.wait(running, num_returns=1)
        for answer in done:
            yield ray.get(answer)


def _attempt(cell: Cell, out: Path, progress: _Progress | None = None) -> tuple[Cell, str | None, str | None]:
    """Compute a cell; one that crashes does not end the others."""
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
    """Keep the engine for as long as the run lasts; yield the client of a Dask cluster, or Ray, else None."""
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
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingPackage("engine='dask' needs Dask: pip install 'vhat[study]'.") from None
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=20)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {scheduler!r}: {error}") from error
        with client:
            yield client
        return
    with LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as own:
        yield own


@contextmanager
def _ray(jobs: int, scheduler: str | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError:
        raise MissingPackage("engine='ray' needs Ray: pip install 'ray[default]'.") from None
    cpus = None if scheduler else jobs  # those of a cluster that is there already are as they are
    try:
        ray.init(address=scheduler, num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {scheduler!r}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


class _Progress:
    """Says which cells begin, how far they are, and after each how many are done and about how long the rest takes."""

    def __init__(self, cells: Sequence[Cell], say: Callable[[str], None], display: Display) -> None:
        self.crashed: dict[Cell, str] = {}
        self._display = display
        self._total, self._done, self._say = len(cells), 0, say
        self._left, self._worked = sum(map(work, cells)), 0.0
        self._began = time.monotonic()

    def begin(self, cell: Cell) -> None:
        self._say(f"{cell.key} begins")
        self._display.begin(cell.key)

    def report(self, cell: Cell, report: Report) -> None:
        self._display.show(cell.key, report)

    def advance(self, cell: Cell, crash: str | None) -> None:
        if crash is not None:
            self.crashed[cell] = crash
        self._display.end(cell.key)
        self._done += 1
        self._worked += work(cell)
        self._left -= work(cell)
        spent = time.monotonic() - self._began
        left = f"about {duration(spent * self._left / self._worked)}" if self._done < self._total else "nothing"
        how = "done" if crash is None else f"CRASHED: {crash}"
        self._say(f"[{self._done}/{self._total}] {cell.key} {how}; {duration(spent)} so far, {left} left")


def work(cell: Cell) -> float:
    """Return about how many seconds of one core a cell takes; only ratios matter."""
    # Measured, in steps of training: a certified minimum costs about 20,000, the exact Hessian at 200 points 60,000,
    # the paper's conjugate gradients at 20 points 40,000 (five times that at the test points for d > 1, where they take
    # all their steps); starting a process and compiling, ten seconds.
    wide = cell.d == 1 and cell.version != "met"
    step = 1e-2 + 3.6e-5 * cell.n if wide else 1e-7 * cell.n * (cell.d + 10)
    fits = 1 if cell.method in ("proposed", "paper-cg") else 11
    exact = cell.version == "met" and cell.method == "proposed"
    answers = 0
    if cell.method == "paper-cg":
        answers = 40_000 if cell.d == 1 else 200_000
    elif exact:
        answers = 60_000
    training = 20_000 if cell.version == "met" else cell.steps
    return 10.0 + step * (fits * training + answers)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
