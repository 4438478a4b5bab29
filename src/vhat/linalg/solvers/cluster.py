"""Sums over the training rows on the workers of a Dask cluster.

Each block of rows is one task, a function of its arguments alone. Further tasks add the sums of the blocks in order.
The blocks depend only on the rows, so that the numbers do not depend on the workers, and Dask recomputes the results of
a lost worker. Rows from files (:class:`vhat.Rows`) are read by the workers; other rows are sent with their task.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk

from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.linalg.solvers.jacobian_factors import gradient_rows
from vhat.linalg.solvers.row_draws import RowDraws
from vhat.linalg.solvers.row_weights import RowWeights
from vhat.models.placeholder_rows import with_placeholder_rows
from vhat.models.problem import Problem
from vhat.progress import bar
from vhat.tables.rows import Rows

__all__ = ["check_engine", "sum_of_draws", "sum_of_squares"]

_LEAST_ROWS = 4096
"""Smallest number of rows times outputs per task."""
_MOST_BLOCKS = 64
"""Largest number of blocks for rows in memory: a few per worker of a small cluster."""
_one_at_a_time = threading.Lock()
"""Lets one task run at a time in a worker. Its threads share the model and the state of a framework, and the matrix
products use several threads already."""


def check_engine(engine: Any) -> None:
    """Check that ``engine`` is None or the client of a Dask cluster.

    Raises:
        InputError: For anything else.
    """
    if engine is not None and not type(engine).__module__.startswith("distributed"):
        raise InputError(
            f"engine={engine!r} is not the client of a Dask cluster. Give distributed.Client(address), or leave it out."
        )


@dataclass(frozen=True, eq=False)
class _Block:
    """Training rows of one task.

    Attributes:
        start: The first row.
        stop: The row after the last.
        inputs: Checked inputs of the rows; None if the worker reads them from files.
        source: The files.
        number: Number of the block within the files.
        digest: Hash of the inputs that the model was fitted to.
    """

    start: int
    stop: int
    inputs: Any = None
    source: Rows | None = None
    number: int = 0
    digest: str = ""

    def read(self, model: Problem) -> Any:
        """Return the inputs.

        Raises:
            InputError: When the files contain other rows than the model was fitted to.
        """
        if self.source is None:
            return self.inputs
        inputs = model.inputs(self.source.read(self.number)[0])
        if _digest(model, inputs) != self.digest:
            raise InputError(
                f"block {self.number} of the training rows ({self.source.blocks[self.number].file}) holds other rows "
                "on a worker than those that the model was fitted to. Let all machines see the same files, and fit the "
                "model to what is in them."
            )
        return inputs


# -- tasks -------------------------------------------------------------------------------------
def _unpickle(model: bytes) -> Problem:
    from distributed.protocol import pickle

    found: Problem = pickle.loads(model)
    return found


def _squares_of_block(model: Problem, block: _Block, weights: RowWeights, unit: np.ndarray, step: int) -> np.ndarray:
    """Return ``sum_i w_i w_i'`` over the weighted rows of a block, in unit-free terms: the upper triangle, (p, p)."""
    total = np.zeros((model.p, model.p), order="F")
    with _one_at_a_time, model.scope():
        inputs = block.read(model)
        count = block.stop - block.start
        for start in range(0, count, step):
            stop = min(start + step, count)
            buffer = np.empty(((stop - start) * model.outputs, model.p))
            rows = weights.take(start, stop).rows(gradient_rows(model, inputs, start, stop, buffer))
            rows /= unit
            total = dsyrk(1.0, rows.T, beta=1.0, c=total, trans=0, lower=0, overwrite_c=1)
    return total


def _draws_of_block(model: Problem, block: _Block, weights: RowWeights, draws: RowDraws, probes: int) -> np.ndarray:
    """Return ``J'M z`` of a block for draws z, (probes, p)."""
    total = np.zeros((probes, model.p))
    with _one_at_a_time, model.scope():
        inputs = block.read(model)
        for rows in draws.blocks(block.start, block.stop):
            start = rows.start - block.start
            stop = rows.stop - block.start
            t = weights.take(start, stop).times(draws.of(range(probes), rows)).reshape(probes, -1)
            buffer = np.empty((t.shape[1], model.p))
            total += t @ gradient_rows(model, inputs, start, stop, buffer)
    return total


def _add(total: np.ndarray, part: np.ndarray) -> np.ndarray:
    return total + part


# -- sums --------------------------------------------------------------------------------------
def sum_of_squares(client: Any, problem: Problem, weights: RowWeights, unit: np.ndarray, step: int) -> np.ndarray:
    """Return ``sum_i w_i w_i'`` over the weighted rows of the Jacobian, in unit-free terms: the upper triangle, (p, p).

    Args:
        client: The client of the cluster.
        problem: The training problem.
        weights: The weights of its rows.
        unit: The inverse unit of each parameter, (p,).
        step: How many training rows are differentiated together.

    Raises:
        InputError: When the model or its rows cannot be sent to the workers.
        MemoryBudgetError: When workers end repeatedly.
    """

    def arguments(block: _Block) -> tuple[Any, ...]:
        return weights.take(block.start, block.stop), unit, step

    return np.asfortranarray(_sum_over_blocks(client, problem, _squares_of_block, arguments, "Gauss-Newton matrix"))


def sum_of_draws(client: Any, problem: Problem, weights: RowWeights, draws: RowDraws, probes: int) -> np.ndarray:
    """Return ``J'M z`` for draws z over all training rows, (probes, p).

    Args:
        client: The client of the cluster.
        problem: The training problem.
        weights: M.
        draws: z.
        probes: Number of draws.

    Raises:
        InputError: When the model or its rows cannot be sent to the workers.
        MemoryBudgetError: When workers end repeatedly.
    """

    def arguments(block: _Block) -> tuple[Any, ...]:
        return weights.take(block.start, block.stop), draws, probes

    return _sum_over_blocks(client, problem, _draws_of_block, arguments, "draws over the training rows")


def _sum_over_blocks(
    client: Any,
    problem: Problem,
    task: Callable[..., np.ndarray],
    arguments: Callable[[_Block], tuple[Any, ...]],
    title: str,
) -> np.ndarray:
    """Return the sum of a task's results over all blocks.

    Args:
        client: The client of the cluster.
        problem: The training problem.
        task: Function of the model, a block, and the arguments of the block.
        arguments: Returns the arguments of a block.
        title: Title of the progress bar.
    """
    from distributed import KilledWorker

    run = f"vhat-{task.__name__.strip('_')}-{uuid.uuid4().hex}"
    with bar(f"{title}, on the cluster", 1) as advance, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # a task is sent only its own rows
        model = client.submit(_unpickle, _pickle(problem), key=f"{run}-model")
        total = None
        for at, block in enumerate(_blocks(problem)):
            part = client.submit(task, model, block, *arguments(block), key=f"{run}-{at}")
            # Only the last sum is referenced here, so that the workers may release the others.
            total = part if total is None else client.submit(_add, total, part, key=f"{run}-sum-{at}")
        assert total is not None
        try:
            found: np.ndarray = total.result()
        except KilledWorker as error:
            raise MemoryBudgetError(
                "workers of the cluster ended, one after the other, most likely for lack of memory: a task takes up to "
                f"{3 * 8 * problem.p**2 / 1e9:.2g} GB for matrices of p = {problem.p:,} parameters. Give workers more "
                "memory, or write the rows in smaller row groups."
            ) from error
        except ModuleNotFoundError as error:
            raise InputError(
                f"the workers of the cluster lack a module: {error}. Install vhat and what the model needs there."
            ) from error
        except KeyboardInterrupt:
            client.cancel(total)  # or the workers would continue
            raise
        advance("")
    return found


def _pickle(problem: Problem) -> bytes:
    """Return the model without its rows, pickled for the workers."""
    from distributed.protocol import pickle

    try:
        model: bytes = pickle.dumps(with_placeholder_rows(problem))
    except (InputError, ModelError):
        raise
    except Exception as error:
        raise InputError(
            f"this model cannot be sent to the workers of a cluster ({type(error).__name__}: {error}). Define what it "
            "is made of in a module that they can import, or leave engine out: fitted.sketch(256)."
        ) from error
    return model


def _blocks(problem: Problem) -> Iterator[_Block]:
    """Yield the blocks of training rows: those of the files, or equal parts of the rows in memory."""
    source = problem.source
    start = 0
    if source is not None:
        for number, part in enumerate(source.blocks):
            stop = start + part.rows
            digest = _digest(problem, problem.take(problem.X, start, stop))
            yield _Block(start, stop, None, source, number, digest)
            start = stop
        return
    # Rounded up: at least the smallest number of rows per task, and at most the largest number of blocks.
    step = max(-(-_LEAST_ROWS // problem.outputs), -(-problem.n // _MOST_BLOCKS))
    for start in range(0, problem.n, step):
        stop = min(start + step, problem.n)
        yield _Block(start, stop, problem.take(problem.X, start, stop))


def _digest(problem: Problem, inputs: Any) -> str:
    found = hashlib.sha256()
    for part in _arrays(inputs):
        values = np.ascontiguousarray(part if isinstance(part, np.ndarray) else problem.numpy(part))
        found.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
    return found.hexdigest()


def _arrays(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if isinstance(inputs, tuple | list):
        for part in inputs:
            yield from _arrays(part)
    else:
        yield inputs
