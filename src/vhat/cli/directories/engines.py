"""Who computes the files: this process, processes beside it, or the workers of a Dask cluster."""

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

__all__ = ["Engine", "Work", "computed"]

Engine = Literal["local", "dask"]
_PATIENCE = 20
"""Seconds until a scheduler that does not answer is given up, as in ``vhat study``."""


@dataclass(frozen=True)
class Work:
    """What is to be computed.

    Attributes:
        predict: What is asked of every row.
        partitions: The files.
        out: The directory of the results, an absolute path.
    """

    predict: FramePredictor
    partitions: Sequence[Partition]
    out: str

    def arguments(self, partition: Partition) -> tuple[FramePredictor, Partition, str, str]:
        """Return the arguments of :func:`predict_partition` for one file."""
        return self.predict, partition, self.out, __version__


def computed(work: Work, engine: Engine, jobs: int, scheduler: str | None) -> Iterator[Finished]:
    """Yield files as their intervals are written, in any order.

    Args:
        work: What is to be computed.
        engine: ``"local"`` or ``"dask"``.
        jobs: Processes at a time; those of a cluster that is there already are as they are.
        scheduler: The address of a Dask scheduler; None starts a cluster on this machine.

    Raises:
        InputError: When no scheduler answers, or a file cannot be used.
        MissingPackage: Without Dask.
        MemoryBudgetError: When processes end without an answer.
    """
    if not work.partitions:
        return iter(())
    if engine == "dask":
        return _by_dask(work, jobs, scheduler)
    if jobs > 1:
        return _by_processes(work, jobs)
    return (predict_partition(*work.arguments(partition)) for partition in work.partitions)


def _by_processes(work: Work, jobs: int) -> Iterator[Finished]:
    before = set(multiprocessing.active_children())
    # a forked child would have the threads' locks of its parent and not the threads
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(work.partitions)), mp_context=context, initializer=_serve_parent)
    ended = False
    try:
        tasks = [pool.submit(predict_partition, *work.arguments(partition)) for partition in work.partitions]
        for task in as_completed(tasks):
            yield task.result()
        ended = True
    except BrokenProcessPool:
        raise MemoryBudgetError(
            "a process that computed intervals was ended from outside, most likely for lack of memory. Take fewer "
            "--jobs, or smaller files."
        ) from None
    finally:
        pool.shutdown(wait=ended, cancel_futures=True)
        if not ended:  # after an error or Ctrl-C nobody waits for files that are half done
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()


def _serve_parent() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the parent, and end when it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a killed parent reads no answer, and its queues, which children hold open, never say so


def _by_dask(work: Work, jobs: int, scheduler: str | None) -> Iterator[Finished]:
    with _client(min(jobs, len(work.partitions)), scheduler) as client:
        from distributed import KilledWorker
        from distributed import as_completed as as_answered

        # The keys belong to this run: what another client has computed under the same key is not taken for it, as its
        # files may be gone. Within the run Dask computes again what a lost worker held.
        run = uuid.uuid4().hex
        futures = {}
        for at, partition in enumerate(work.partitions):
            future = client.submit(predict_partition, *work.arguments(partition), key=f"vhat-predict-{run}-{at}")
            futures[future] = partition
        try:
            for future in as_answered(list(futures)):
                partition = futures.pop(future)
                try:
                    yield future.result()
                except KilledWorker as error:
                    raise MemoryBudgetError(
                        f"the workers that were given {partition.name} ended, one after the other, most likely for "
                        "lack of memory. Give workers more of it, or make smaller files."
                    ) from error
                except ModuleNotFoundError as error:
                    raise InputError(f"the workers of the cluster have no vhat: {error}. Install it there.") from error
                del future  # so that the cluster forgets the answer
        finally:
            client.cancel(list(futures))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: what is ignored when a process starts, it goes on ignoring."""
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
        client = Client(scheduler, timeout=_PATIENCE)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {scheduler!r}: {error}.") from error
    with client:
        yield client
