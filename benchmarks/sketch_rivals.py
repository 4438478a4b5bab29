"""Sketches beside laplace-torch on the same trained networks: seconds, memory, error of the standard deviations.

    python -m benchmarks.sketch_rivals [deep wide many] [--only NAME ...] [--rows]

- ``deep``: 10-64-64-1 ReLU (p = 4,929), n = 20,000; ``many``: the same network with n = 100,000;
- ``wide``: 128-256-256-1 ReLU (p = 99,073), n = 5,000.

The networks are trained by Adam on made data and are no minimum of anything: around their parameters everything is
linearised, with one lam. The two libraries estimate two quantities, and each is compared with the exact value of its
own, computed here in NumPy and double precision from the factors of the Jacobian:

- laplace-torch: the variance ``sigma^2 g'(J'J + n lam)^-1 g`` of the Gauss-Newton posterior of all weights, with prior
  precision ``n lam / sigma^2`` and the true noise; also for its last layer, which leaves the other weights out;
- a sketch: the variance ``sigma^2 V/n = sigma^2 |J (J'J + n lam)^-1 g|^2`` of the refit, and from the same probes also
  that of the posterior, ``sigma^2/n V/(1 - unsupported)``.

Each method runs in a process of its own with one thread. Seconds are CPU seconds: to fit or make, and of 2,000 rows
after a first call, the median of three. laplace-torch's are those of the fastest of its backends and batch sizes.
Memory is the peak of what is resident above what was there before the fit (libraries, network and data are). Errors are
relative, at 200 rows like the training rows and 200 with three times their standard deviation. Results are kept in
``benchmarks/sketch_rivals.json``; ``--rows`` prints the rows of docs/benchmarks.md from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "sketch_rivals.json"
CACHE = Path(__file__).parent / ".cache"
NOISE = 0.1
PROBES = 256
JUDGED = 200
"""Rows of each kind at which standard deviations are compared."""
TIMED = 2000
"""Rows that are timed, of those like the training rows."""


@dataclass(frozen=True)
class Case:
    """A network and its training rows."""

    n: int
    widths: tuple[int, ...]
    lam: float
    epochs: int = 30


CASES = {
    "deep": Case(20_000, (10, 64, 64, 1), 1e-4),
    "wide": Case(5_000, (128, 256, 256, 1), 1e-3),
    "many": Case(100_000, (10, 64, 64, 1), 1e-4),
}

OURS = {
    "sketch": {"way": "sketch", "parameters": "all"},
    "sketch, last layer": {"way": "sketch", "parameters": "last"},
    "exact intervals": {"way": "exact", "parameters": "all"},
}
THEIRS = {
    "laplace kron": {"subset": "all", "structure": "kron"},
    "laplace last layer": {"subset": "last_layer", "structure": "full"},
    "laplace full": {"subset": "all", "structure": "full"},
}
METHODS = (
    "sketch",
    "laplace kron",
    "sketch, last layer",
    "laplace last layer",
    "exact intervals",
    "laplace full",
)
BACKENDS = ("curvlinops", "backpack", "asdl")
BATCHES = (250, 1000, 5000)
"""Rows of a batch that laplace-torch is fitted with: the second by every backend, the others by the fastest."""
ASKED = (20, 50, 100, 500)
"""Rows that laplace-torch is asked about together."""
MOST_FULL = 10_000
"""Parameters up to which laplace-torch is asked for the whole p x p posterior."""


# -- the problem and the exact values ----------------------------------------------------------
def make_problem(case: Case, file: str) -> None:
    """Train the network and write it with its data, as :class:`benchmarks.foreign.model.Problem` reads them."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    d = case.widths[0]
    directions = rng.standard_normal((d, 6)) / np.sqrt(d)

    def truth(X: np.ndarray) -> np.ndarray:
        return np.asarray(np.sin(2 * X @ directions).sum(axis=1) / np.sqrt(6))

    X = rng.standard_normal((case.n, d))
    y = truth(X) + NOISE * rng.standard_normal(case.n)
    points = np.concatenate(
        [rng.standard_normal((JUDGED, d)), 3 * rng.standard_normal((JUDGED, d)), rng.standard_normal((TIMED, d))]
    )
    module = _module(case.widths)
    inputs, responses = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    steps = case.epochs * -(-case.n // 100)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(case.epochs):
        for rows in torch.split(torch.randperm(case.n), 100):
            optimizer.zero_grad()
            (module(inputs[rows]) - responses[rows]).square().mean().backward()
            optimizer.step()
            schedule.step()
    linears = [part for part in module if isinstance(part, torch.nn.Linear)]
    leaves = {f"w{i}": part.weight.detach().numpy().T for i, part in enumerate(linears)}
    leaves |= {f"b{i}": part.bias.detach().numpy() for i, part in enumerate(linears)}
    with torch.no_grad():
        held = module(torch.tensor(points[:JUDGED], dtype=torch.float32))[:, 0].numpy() - truth(points[:JUDGED])
        misfit = (module(inputs) - responses).square().mean().sqrt()
    facts = {"layers": len(linears), "activation": "relu", "lam": case.lam}
    facts |= {"misfit": float(misfit), "error": float(np.sqrt(np.mean(held**2)))}
    np.savez(file, X=X.astype(np.float32), y=y, points=points.astype(np.float32), **leaves, **facts)


def _module(widths: tuple[int, ...]) -> Any:
    from torch import nn

    parts: list[Any] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Factors:
    """What enters each layer and what is passed back to it, by hand: the Jacobian is their product, layer by layer."""

    def __init__(self, kept: Any, X: np.ndarray) -> None:
        layers = range(int(kept["layers"]))
        weights = [kept[f"w{i}"].astype(np.float64) for i in layers]
        entering, values = [], X.astype(np.float64)
        for i in layers:
            entering.append(np.column_stack([values, np.ones(len(values))]))
            values = values @ weights[i] + kept[f"b{i}"]
            if i < layers[-1]:
                values = np.maximum(values, 0)
        back = np.ones((len(X), 1))
        passed = [back]
        for i in reversed(layers[1:]):
            back = (back @ weights[i].T) * (entering[i][:, :-1] > 0)
            passed.append(back)
        self.pairs = list(zip(entering, reversed(passed), strict=True))

    def kernel(self, other: Factors) -> np.ndarray:
        """Return the inner products of the rows of two Jacobians."""
        return sum((a @ b.T) * (c @ d.T) for (a, c), (b, d) in zip(self.pairs, other.pairs, strict=True))

    def rows(self, at: slice = slice(None)) -> np.ndarray:
        """Return rows of the Jacobian itself."""
        parts = [np.einsum("ni,nj->nij", a[at], c[at]).reshape(len(a[at]), -1) for a, c in self.pairs]
        return np.concatenate(parts, axis=1)

    def squares(self) -> np.ndarray:
        """Return the squared length of each row."""
        return sum((a**2).sum(axis=1) * (c**2).sum(axis=1) for a, c in self.pairs)

    @property
    def last(self) -> Factors:
        """The same of the last layer alone."""
        found = object.__new__(Factors)
        found.pairs = self.pairs[-1:]
        return found


def make_exact(case: Case, file: str, out: str) -> None:
    """Write the exact standard deviations at the judged rows."""
    with np.load(file) as kept:
        train, test = Factors(kept, kept["X"]), Factors(kept, kept["points"][: 2 * JUDGED])
    posterior, refit = _exact(train, test, case)
    last_posterior, last_refit = _exact(train.last, test.last, case)
    np.savez(out, posterior=posterior, refit=refit, last_posterior=last_posterior, last_refit=last_refit)


def _exact(train: Factors, test: Factors, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard deviations of posterior and refit, through the smaller of the two matrices."""
    from scipy.linalg import cho_factor, cho_solve

    n = case.n
    p = test.rows(slice(1)).shape[1]
    ridge = n * case.lam
    if p <= n:
        gram = np.zeros((p, p))
        for start in range(0, n, 1000):
            J = train.rows(slice(start, start + 1000))
            gram += J.T @ J
        G = test.rows()
        H = cho_solve(cho_factor(gram + ridge * np.eye(p)), G.T)
        posterior, refit = np.einsum("mp,pm->m", G, H), np.einsum("pm,pm->m", H, gram @ H)
    else:
        cross = train.kernel(test)
        A = cho_solve(cho_factor(train.kernel(train) + ridge * np.eye(n)), cross)
        posterior = (test.squares() - np.einsum("nm,nm->m", cross, A)) / ridge
        refit = np.einsum("nm,nm->m", A, A)
    return NOISE * np.sqrt(posterior), NOISE * np.sqrt(refit)


# -- ours --------------------------------------------------------------------------------------
def measure_ours(file: str, way: str, parameters: str) -> dict[str, Any]:
    """Return seconds, memory and standard deviations of one of our ways."""
    import torch

    import vhat
    from benchmarks.foreign.model import Problem
    from benchmarks.peak import _resident

    torch.set_num_threads(1)
    problem = Problem(file, torch.float32)
    X, y = problem.X, problem.y[:, 0].double()
    module = torch.nn.Sequential(*problem.module, torch.nn.Flatten(0))
    toy = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    warm = vhat.from_torch(toy, torch.ones(9, 2), torch.ones(9), weight_decay=1.0)
    warm.linearised(1.0).sketch(noise=1.0).interval(np.ones((1, 2)))  # imports what is imported when it is needed
    points = problem.points.numpy()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew from what is resident now
    before = _resident("VmRSS")

    began = time.process_time()
    fitted = vhat.from_torch(module, X, y, weight_decay=problem.lam, parameters=parameters)
    fitted = fitted.linearised(problem.lam)
    if way == "sketch":
        asked: Any = fitted.sketch(PROBES, noise=NOISE)
        options = {}
    else:
        fitted.interval(points[:4], noise=NOISE)
        asked, options = fitted, {"noise": NOISE}
    made = time.process_time() - began
    held = _resident("VmHWM")

    timed = points[2 * JUDGED :]
    asked.interval(timed, bound="asymptotic", **options)
    seconds = []
    for i in range(1, 4):
        fresh = timed + np.float32(0.01 * i)  # a fitted model remembers what it has answered
        began = time.process_time()
        asked.interval(fresh, bound="asymptotic", **options)
        seconds.append(time.process_time() - began)
    norm = asked.weighted_norm(points[: 2 * JUDGED])
    band = asked.interval(points[: 2 * JUDGED], bound="asymptotic", **options)
    return {
        "fit": made,
        "per_1000": 1000 * float(np.median(seconds)) / TIMED,
        "peak_fit": held - before,
        "peak": _resident("VmHWM") - before,
        "before": before,
        "solver": norm.solver if way == "exact" else repr(fitted.plan(points[:1], curvature="ggn").solver),
        "probes": getattr(asked, "probes", None),
        "refit": band.standard_error.tolist(),
        "posterior": (NOISE * np.sqrt(norm.value / (1 - norm.unsupported) / len(X))).tolist(),
    }


# -- theirs ------------------------------------------------------------------------------------
def measure_theirs(arrays: dict[str, Any], subset: str, structure: str) -> dict[str, Any]:
    """Return seconds, memory and standard deviations of laplace-torch by its fastest backend and batch sizes."""
    from benchmarks.rivals.foreign import Foreign, Unavailable
    from benchmarks.timing import Stopwatch

    watch = Stopwatch("cpu")
    best: dict[str, Any] = {}
    tried: dict[str, Any] = {}
    options = {"noise": NOISE, "subset": subset, "structure": structure}

    def try_fit(backend: str, batch: int) -> None:
        nonlocal best
        try:
            with Foreign("laplace_sketch", arrays, 0, watch, backend=backend, **options) as rival:
                seconds, _ = rival.call("fit", batch=batch)
        except Unavailable as error:
            tried[f"{backend} {batch}"] = str(error)
            return
        tried[f"{backend} {batch}"] = seconds
        if not best or seconds < best["fit"]:
            best = {"fit": seconds, "backend": backend, "batch": batch}

    for backend in BACKENDS:
        try_fit(backend, BATCHES[1])
    for batch in (BATCHES[0], BATCHES[2]) if best else ():
        try_fit(best["backend"], batch)
    if not best:
        return {"tried": tried}
    # Answers: in one process for each number of rows that are asked about together, so that each has a peak of its own.
    answered: dict[str, Any] = {}
    for together in ASKED:
        try:
            with Foreign("laplace_sketch", arrays, 0, watch, backend=best["backend"], **options) as rival:
                rival.call("fit", batch=best["batch"])
                held = rival.call("memory")[1]
                span = {"start": 2 * JUDGED, "stop": 2 * JUDGED + TIMED, "batch": together}
                rival.call("deviations", **span)
                seconds = float(np.median([rival.call("deviations", **span)[0] for _ in range(3)]))
                after = rival.call("memory")[1]
                values = rival.call("deviations", start=0, stop=2 * JUDGED, batch=together)[1]
        except Unavailable as error:
            tried[f"{together} asked"] = str(error)
            continue
        tried[f"{together} asked"] = seconds
        if not answered or seconds < answered["seconds"]:
            answered = {
                "seconds": seconds,
                "together": together,
                "peak_fit": held["peak"] - held["before"],
                "peak": after["peak"] - after["before"],
                "before": after["before"],
                "posterior": values,
            }
    per = 1000 * answered.pop("seconds") / TIMED if answered else None
    return best | answered | {"per_1000": per, "tried": tried}


# -- errors ------------------------------------------------------------------------------------
def errors(found: list[float], exact: np.ndarray) -> dict[str, dict[str, float]]:
    """Return errors relative to the exact standard deviations, for both kinds of rows."""
    ratio = np.asarray(found) / exact
    parts = {"in": ratio[:JUDGED], "off": ratio[JUDGED:]}
    return {
        name: {
            "rms": float(np.sqrt(np.mean((part - 1) ** 2))),
            "median": float(np.median(np.abs(part - 1))),
            "ratio": float(np.median(part)),
        }
        for name, part in parts.items()
    }


def run(name: str, only: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure one case, all methods or some, and yield what was found of each."""
    case = CASES[name]
    CACHE.mkdir(exist_ok=True)
    file, out = str(CACHE / f"sketch-rivals-{name}.npz"), str(CACHE / f"sketch-rivals-{name}-exact.npz")
    if not Path(file).exists():
        _child("make", name, file)
    if not Path(out).exists():
        _child("exact", name, file, out)
    with np.load(file) as kept:
        arrays = dict(kept)
    with np.load(out) as kept:
        exact = dict(kept)
    parameters = sum((a + 1) * b for a, b in pairwise(case.widths))
    yield (
        "problem",
        {
            "n": case.n,
            "p": parameters,
            "widths": case.widths,
            "lam": case.lam,
            "noise": NOISE,
            "training residual": float(arrays["misfit"]),
            "error of the prediction": float(arrays["error"]),
            "posterior sd": [float(np.median(part)) for part in np.split(exact["posterior"], 2)],
            "refit sd": [float(np.median(part)) for part in np.split(exact["refit"], 2)],
        },
    )
    for method in METHODS:
        if (only and method not in only) or (method == "laplace full" and parameters > MOST_FULL):
            continue
        load = os.getloadavg()[0]
        if method in OURS:
            measured = json.loads(_child("ours", name, file, json.dumps(OURS[method])))
        else:
            measured = measure_theirs(arrays, **THEIRS[method])
        for quantity in ("refit", "posterior"):
            if quantity in measured:
                values = measured.pop(quantity)
                measured[quantity] = errors(values, exact[quantity])
                if "last" in method:
                    measured[f"{quantity} of the last layer"] = errors(values, exact[f"last_{quantity}"])
        yield method, measured | {"load": load}


def _child(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.sketch_rivals", "--child", *arguments],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return (done.stdout.splitlines() or [""])[-1]


def _as_child(what: str, name: str, *arguments: str) -> None:
    if what == "make":
        make_problem(CASES[name], *arguments)
    elif what == "exact":
        make_exact(CASES[name], *arguments)
    else:
        print(json.dumps(measure_ours(arguments[0], **json.loads(arguments[1]))))


# -- the table ---------------------------------------------------------------------------------
def table(kept: dict[str, Any]) -> str:
    """Return the rows of the table in docs/benchmarks.md."""
    lines = [
        "| network | method | made or fitted, s | 1,000 rows, s | peak, GB "
        "| error of its own sd: like training / off the data | posterior sd: like training / off the data |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for name, found in kept.items():
        case = CASES[name]
        p = sum((a + 1) * b for a, b in pairwise(case.widths))
        title = f"{'-'.join(map(str, case.widths))}, p = {p:,}, n = {case.n:,}"
        for method in METHODS:
            row = found.get(method)
            if row and "per_1000" in row:
                own = _cell(row["refit"]) if "refit" in row else "the next column"
                rows = "not measured" if row["per_1000"] is None else f"{row['per_1000']:.2g}"
                cells = [title, method, f"{row['fit']:.3g}", rows, f"{row['peak'] / 1e9:.2f}"]
                lines.append("| " + " | ".join([*cells, own, _cell(row["posterior"])]) + " |")
                title = ""
    return "\n".join(lines)


def _cell(found: dict[str, dict[str, float]]) -> str:
    return " / ".join(f"{_percent(found[part]['rms'])} ({_percent(found[part]['median'])})" for part in ("in", "off"))


def _percent(share: float) -> str:
    return "< 0.01%" if share < 1e-4 else f"{100 * share:.2g}%"


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _as_child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--only", action="append")
    parser.add_argument("--rows", action="store_true")
    asked = parser.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for name in [] if asked.rows else asked.cases:
        for method, found in run(name, asked.only):
            kept.setdefault(name, {})[method] = found
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
            print(name, method, json.dumps(found), flush=True)
    print(table(kept))


if __name__ == "__main__":
    main()
