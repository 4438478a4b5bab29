"""One cell in a process of its own: ``python -m vhat.study.worker`` reads it from standard input.

A process of its own has one thread for linear algebra whatever runs around it, so that the numbers do not depend on
the engine or on its number of workers; it gives its memory back; and if it is killed for memory, that ends one cell.
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
    """Compute a cell in a process of its own and write its result.

    Args:
        cell: The cell.
        out: The directory of the study. Where this machine does not have it, nothing is written here.
        report: Called with how far the cell is, some times a minute, from another thread.

    Returns:
        The result as text; the caller writes it where this machine could not.

    Raises:
        CellCrashed: With the end of what the process said.
    """
    from vhat.study.results import Results

    there = Path(out).is_dir()
    order = json.dumps({"cell": cell.config(), "scratch": str(Results(out).scratch) if there else None})
    with subprocess.Popen(
        [sys.executable, "-m", "vhat.study.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _ENVIRONMENT | (_kept_compilations(Results(out).compiled) if there else {}),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(order + "\n")
        process.stdin.flush()
        # Standard input stays open for as long as this process lives: its end tells the other one to end too.
        try:
            text, said = _read_to_the_end(process, report)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        how = f"by signal {-process.returncode}" if process.returncode < 0 else f"with code {process.returncode}"
        raise CellCrashed(f"the process of cell {cell.key} ended {how}: {said.strip()[-2000:] or 'it said nothing'}")
    if there:
        Results(out).write(cell, text)
    return text


def _kept_compilations(folder: Path) -> dict[str, str]:
    """Have JAX keep what it compiles, which is most of the work of a small cell; the code is the same, kept or not."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _read_to_the_end(process: subprocess.Popen[str], report: Callable[[Report], None] | None) -> tuple[str, str]:
    """Read both outputs, without closing standard input as ``communicate`` would; hand reports on as they come."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors = process.stderr
    said: list[str] = []

    def listen() -> None:
        for line in errors:
            found = parse(line)
            if found is None:
                said.append(line)
            elif report is not None:
                report(found)

    reader = threading.Thread(target=listen)
    reader.start()
    text = process.stdout.read()
    process.wait()
    reader.join()
    return text, "".join(said)


def _end_with_the_caller() -> None:
    """End this process when standard input does: who asked is gone."""
    sys.stdin.read()
    os._exit(1)


def _one_thread_of_xla() -> None:
    """Start XLA's pool with one thread, on any core.

    The pool takes a thread for every core that the process may use when it starts, and has no setting; how a sum is
    split over them, and so its last digits, would depend on the machine.
    """
    if not hasattr(os, "sched_setaffinity"):  # pragma: no cover  (only Linux has it)
        return
    import jax

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    jax.devices()
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # one that has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def main() -> None:
    """Compute the cell that standard input names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to answer
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    answer, sys.stdout = sys.stdout, sys.stderr
    _one_thread_of_xla()
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
