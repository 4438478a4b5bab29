"""One cell in a separate process: ``python -m vhat.study.worker`` reads the cell from standard input.

A separate process has a single thread for linear algebra, so that the numbers do not depend on the engine or on the
number of workers. It returns its memory at the end, and if it is killed for lack of memory, only one cell is lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vhat.study.cell import Cell
from vhat.study.cell_progress import FitCounter, Report, parse, send

__all__ = ["CellCrashed", "compute"]

_MESSAGE_LENGTH = 2000
"""Number of characters at the end of a crashed process's output that are reported."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
    "PYTHONWARNINGS": "default",
}


class CellCrashed(RuntimeError):  # noqa: N818  (what happened, read as a sentence)
    """The process of a cell ended without a result."""


def compute(cell: Cell, out: Path, report: Callable[[Report], None] | None = None) -> str:
    """Compute a cell in a separate process and write its result.

    Args:
        cell: The cell.
        out: Directory of the study. If it does not exist on this machine, nothing is written here.
        report: Called with the progress of the cell, several times a minute, from another thread.

    Returns:
        The result as text; the caller writes it if this machine could not.

    Raises:
        CellCrashed: With the end of the process's output.
    """
    from vhat.study.results import Results

    results = Results(out)
    environment = os.environ | _ENVIRONMENT
    scratch = None
    exists = Path(out).is_dir()
    if exists:
        environment |= _compilation_cache(results.compiled)
        scratch = str(results.scratch)
    order = json.dumps({"cell": cell.config(), "scratch": scratch})
    with subprocess.Popen(
        [sys.executable, "-m", "vhat.study.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(order + "\n")
        process.stdin.flush()
        # Standard input stays open while this process lives: when it closes, the worker ends too.
        try:
            text, errors = _read_to_the_end(process, report)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise CellCrashed(_crash_message(cell, process.returncode, errors))
    if exists:
        results.write(cell, text)
    return text


def _crash_message(cell: Cell, returncode: int, errors: str) -> str:
    """Return the message about a process that ended without a result.

    Args:
        cell: The cell.
        returncode: Exit status, or minus the number of the signal.
        errors: Standard error of the process.
    """
    how = f"by signal {-returncode}" if returncode < 0 else f"with code {returncode}"
    output = errors.strip()[-_MESSAGE_LENGTH:] or "it said nothing"
    return f"the process of cell {cell.key} ended {how}: {output}"


def _compilation_cache(folder: Path) -> dict[str, str]:
    """Return the environment in which JAX caches all compiled code.

    Compilation is most of the work of a small cell. Cached code is identical to newly compiled code.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _read_to_the_end(process: subprocess.Popen[str], report: Callable[[Report], None] | None) -> tuple[str, str]:
    """Return standard output and standard error of a process, without its reports, which go to ``report``.

    Unlike ``communicate``, this does not close standard input.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    stream = process.stderr
    errors: list[str] = []

    def listen() -> None:
        for line in stream:
            parsed = parse(line)
            if parsed is None:
                errors.append(line)
            elif report is not None:
                report(parsed)

    # Both outputs are read at once: a full pipe would block the process.
    reader = threading.Thread(target=listen)
    reader.start()
    text = process.stdout.read()
    process.wait()
    reader.join()
    return text, "".join(errors)


def _exit_with_caller() -> None:
    """Exit when standard input closes: then the process that started this one has ended."""
    sys.stdin.read()
    os._exit(1)


def _limit_xla_to_one_thread() -> None:
    """Start XLA's thread pool with one thread, which may run on any core.

    The pool takes a thread for every core that the process may use at its start, and has no setting. The number of
    threads determines how a sum is split, and so its last digits.
    """
    if not hasattr(os, "sched_setaffinity"):  # pragma: no cover  (only Linux has it)
        return
    import jax

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    jax.devices()  # starts the pool
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def main() -> None:
    """Compute the cell given on standard input, and write its result to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_caller, daemon=True).start()
    # Only the result may go to standard output; whatever else is printed goes to standard error.
    answer = sys.stdout
    sys.stdout = sys.stderr
    _limit_xla_to_one_thread()
    from vhat.progress import listen
    from vhat.study.measure import measure
    from vhat.study.protocol import fits_of
    from vhat.study.results import to_text

    scratch = None if order["scratch"] is None else Path(order["scratch"])
    cell = Cell(**order["cell"])
    with listen(FitCounter(fits_of(cell), lambda report: send(report, sys.stderr))):
        result = measure(cell, scratch)
    answer.write(to_text(result))
    answer.flush()
    os._exit(0)  # without waiting for the thread that reads standard input


if __name__ == "__main__":
    main()
