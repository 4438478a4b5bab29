"""Sketches: seconds a row beside the exact answer, growth with n, and two problems of a million rows or parameters.

    python -m benchmarks.sketch [rows growth million wide5 wide10 wide20 wide] [--threads 2]

- ``rows``: n = 10,000, p = 12,289, exact Hessian: CPU seconds a further row, exact (16 rows) and by 256 probes
  (10,000 rows), in one process.
- ``growth``: CPU seconds a row of a sketch at n = 1,000, 10,000 and 100,000 (Gauss-Newton, p = 1,201).
- ``million``: n = 1,000,000, 10-64-64-1 ReLU (p = 4,929), the linearised refit with a lam that is given, 256 probes,
  100,000 rows.
- ``wide``: n = 40,000, 178-900-900-1 ReLU (p = 972,901), Gauss-Newton by ``solver="auto"``: exact intervals of 1,000
  rows from a kernel in single precision; ``wide5``, ``wide10``, ``wide20``: the same for n = 5,000, 10,000, 20,000.

Data are made: standard normal inputs, the network's own predictions plus noise. Each case is a process of its own, of
which wall seconds, CPU seconds and the peak of resident memory are kept in ``benchmarks/sketch.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "sketch.json"
PROBES = 256


def network(
    n: int, widths: tuple[int, ...], activation: str, lam: float, *, noise: float = 0.05, **options: Any
) -> Any:
    """Return a fitted model whose responses are its own predictions plus noise."""
    import vhat
    from vhat.fit import Network

    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, widths[0]))
    made = Network(widths, activation)
    params = made.init(0)
    y = np.asarray(made(params, X.astype(np.float32)), dtype=np.float64) + noise * rng.standard_normal(n)
    return vhat.from_jax(made, params, X, y, weight_decay=lam, **options)


def points(m: int, d: int) -> np.ndarray:
    return np.random.default_rng(99).standard_normal((m, d))


def timed(work: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def seconds_a_row(sketch: Any, x: np.ndarray, options: dict[str, Any]) -> float:
    """Return CPU seconds a row, compiled before, the median of three."""
    sketch.interval(x, **options)
    return float(np.median([timed(lambda: sketch.interval(x, **options))[0] for _ in range(3)])) / len(x)


def rows() -> dict[str, Any]:
    fitted = network(10_000, (10, 1024, 1), "tanh", 1e-2, noise=0.01)
    options = {"bound": "asymptotic"}
    given = {"noise": 0.01, "curvature": "hessian"}
    fitted.interval(points(4, 10), **options, **given)  # compiles and factorises
    exact, band = timed(lambda: fitted.interval(points(16, 10) + 0.1, **options, **given))
    made, sketch = timed(lambda: fitted.sketch(PROBES, **given))
    each = seconds_a_row(sketch, points(10_000, 10), options)
    again = sketch.interval(points(16, 10) + 0.1, **options)
    ratio = again.standard_error / band.standard_error
    return {
        "exact_row": exact / 16,
        "sketch_row": each,
        "sketch_made": made,
        "faster": exact / 16 / each,
        "error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
    }


def growth() -> dict[str, Any]:
    found = {}
    for n in (1_000, 10_000, 100_000):
        fitted = network(n, (10, 100, 1), "tanh", 1e-3)
        from vhat.sketch import sketch as module

        module.MOST_EXACT = 0  # V by probes, as for larger models
        made, sketch = timed(lambda fitted=fitted: fitted.sketch(PROBES, noise=0.05, curvature="ggn"))
        each = seconds_a_row(sketch, points(10_000, 10), {"bound": "asymptotic"})
        found[f"{n}"] = {"sketch_row": each, "sketch_made": made}
    return found


def million() -> dict[str, Any]:
    fitted = network(1_000_000, (10, 64, 64, 1), "relu", 1e-4)
    lin, tangent = timed(lambda: fitted.linearised(1e-4))
    made, sketch = timed(lambda: tangent.sketch(PROBES, noise=0.05))
    asked, band = timed(lambda: sketch.interval(points(100_000, 10)))
    known = tangent.interval(points(50, 10), noise=0.05)
    ratio = band.standard_error[:50] / known.standard_error
    return {
        "linearised": lin,
        "sketch_made": made,
        "asked": asked,
        "bound": band.bound,
        "error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
    }


def wide(n: int, memory: float) -> dict[str, Any]:
    """Return what exact intervals of 1,000 rows take; the budget leaves room for a kernel in single precision only."""
    fitted = network(n, (178, 900, 900, 1), "relu", 1e-3, memory=memory)
    x = points(1000, 178)
    plan = str(fitted.plan(x, curvature="ggn"))
    asked, band = timed(lambda: fitted.interval(x, noise=0.05, curvature="ggn", bound="asymptotic"))
    return {
        "n": n,
        "p": fitted.problem.p,
        "asked": asked,
        "plan": plan,
        "solver": band.solver,
        "converged": int(np.sum(band.status == "converged")),
    }


CASES = {
    "rows": rows,
    "growth": growth,
    "million": million,
    "wide5": lambda: wide(5_000, 0.65e9),
    "wide10": lambda: wide(10_000, 1.45e9),
    "wide20": lambda: wide(20_000, 4e9),
    "wide": lambda: wide(40_000, 10.6e9),
}


def run_child(case: str) -> None:
    import warnings

    warnings.simplefilter("ignore")
    began = time.perf_counter()
    found = CASES[case]()
    use = resource.getrusage(resource.RUSAGE_SELF)
    found |= {
        "wall": time.perf_counter() - began,
        "cpu": use.ru_utime + use.ru_stime,
        "peak_gb": use.ru_maxrss * 1024 / 1e9,
    }
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        run_child(asked.cases[0])
        return
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in asked.cases:
        threads = str(asked.threads)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sketch", case, "--child"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        kept[case] = json.loads(done.stdout.splitlines()[-1]) | {"threads": asked.threads}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        print(case, json.dumps(kept[case], indent=1))


if __name__ == "__main__":
    main()
