"""Compute files in this process, in several processes, or on the workers of a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from vhat import __version__
from vhat.cli.directories.dataset import Partition
from vhat.cli.directories.frames import FramePredictor
from vhat.cli.directories.partition import Finished, predict_partition
from vhat.errors import InputError, MemoryBudgetError, MissingPackage

__all__ = ["Engine", "Work", "compute"]

Engine = Literal["local", "dask"]
_SCHEDULER_TIMEOUT = 20
"""Seconds to wait for the answer of a scheduler, as in ``vhat study``."""


@dataclass(frozen=True)
class Work:
    """The files to compute.

    Attributes:
        predict: The function from rows to their intervals.
        partitions: The files.
        out: The directory of the results, an absolute path.
    """

    predict: FramePredictor
    partitions: Sequence[Partition]
    out: str

    def arguments(self, partition: Partition) -> tuple[FramePredictor, Partition, str, str]:
        """Return the arguments of :func:`predict_partition` for one file."""
        return self.predict, partition, self.out, __version__


def compute(work: Work, engine: Engine, jobs: int, scheduler: str | None) -> Iterator[Finished]:
    """Compute files, and yield each when its intervals are written, in any order.

    Args:
        work: The files to compute.
        engine: ``"local"`` or ``"dask"``.
        jobs: The number of processes. An existing cluster keeps its own number.
        scheduler: The address of a Dask scheduler; None starts a cluster on this machine.

    Raises:
        InputError: If no scheduler answers, or a file cannot be used.
        MissingPackage: If Dask is not installed.
        MemoryBudgetError: If processes end without a result.
    """
    if not work.partitions:
        return iter(())
    if engine == "dask":
        return _by_dask(work, jobs, scheduler)
    if jobs > 1:
        return _by_processes(work, jobs)
    return (predict_partition(*work.arguments(partition)) for partition in work.partitions)


def _by_processes(work: Work, jobs: int) -> Iterator[Finished]:
    """Compute files in several processes on this machine."""
    other_children = set(multiprocessing.active_children())
    # Spawn, not fork: a forked child has the locks of its parent's threads, but not the threads that release them.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(work.partitions)), mp_context=context, initializer=_initialise_worker)
    completed = False
    try:
        tasks = [pool.submit(predict_partition, *work.arguments(partition)) for partition in work.partitions]
        for task in as_completed(tasks):
            yield task.result()
        completed = True
    except BrokenProcessPool:
        raise MemoryBudgetError(
            "a process that computed intervals was killed, most likely for lack of memory. Use fewer --jobs, or "
            "smaller files."
        ) from None
    finally:
        pool.shutdown(wait=completed, cancel_futures=True)
        if not completed:  # after an error or Ctrl-C, do not wait for files that are half finished
            for child in set(multiprocessing.active_children()) - other_children:
                child.terminate()


def _initialise_worker() -> None:
    """Ignore Ctrl-C, which the parent handles for all processes of a terminal, and exit when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Wait for the end of the parent process, then exit at once."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the queues of a killed parent never close, because its children hold them open


def _by_dask(work: Work, jobs: int, scheduler: str | None) -> Iterator[Finished]:
    """Compute files on the workers of a Dask cluster."""
    with _client(min(jobs, len(work.partitions)), scheduler) as client:
        from distributed import KilledWorker
        from distributed import as_completed as as_finished

        # Keys are unique to this run. Dask would otherwise reuse the result of another client under the same key, whose
        # files may have been removed. Within the run, Dask computes the files of a lost worker again.
        run = uuid.uuid4().hex
        futures = {}
        for index, partition in enumerate(work.partitions):
            future = client.submit(predict_partition, *work.arguments(partition), key=f"vhat-predict-{run}-{index}")
            futures[future] = partition
        try:
            for future in as_finished(list(futures)):
                partition = futures.pop(future)
                try:
                    yield future.result()
                except KilledWorker as error:
                    raise MemoryBudgetError(
                        f"the workers that computed {partition.name} ended one after the other, most likely for lack "
                        "of memory. Give the workers more memory, or make smaller files."
                    ) from error
                except ModuleNotFoundError as error:
                    raise InputError(f"the workers of the cluster have no vhat: {error}. Install it there.") from error
                del future  # so that the cluster releases the result
        finally:
            client.cancel(list(futures))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that are started in the block ignore Ctrl-C: a new process inherits ignored signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _client(jobs: int, scheduler: str | None) -> Iterator[Any]:
    """Connect to a Dask scheduler, or start a cluster on this machine, and yield the client."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingPackage("--engine dask needs Dask: pip install 'vhat[study]'.") from None
    if scheduler is None:
        with _interrupts_ignored():
            cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, processes=True)
        with cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(scheduler, timeout=_SCHEDULER_TIMEOUT)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {scheduler!r}: {error}.") from error
    with client:
        yield client
