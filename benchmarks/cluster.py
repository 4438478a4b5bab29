"""One GB of Parquet in a hundred files on a local Dask cluster: seconds, memory of each worker, equal numbers.

    python -m benchmarks.cluster [predict sketch] [--files 100] [--rows 31250]

- ``predict``: ``vhat predict MODEL DIRECTORY --engine dask`` over all files: one worker, two workers, two workers of
  which one is killed after a third of the files. The files of intervals must be the same, byte by byte, and those of
  ten of them the same as without a cluster.
- ``sketch``: ``fitted.sketch(256, engine=client)`` of a torch network on ``vhat.Rows`` over the same files: one worker,
  two, two of which one is killed after a third of the two workers' time, and this process alone. The probes of the
  cluster must be equal bit by bit; against this process the largest relative difference of standard errors is told.

Rows are 40 standard normal inputs and a response in double precision. Each worker is a process with one thread, which
has imported what it needs when the clock starts. Its memory is the peak of what was resident (``VmHWM``), read before
it is closed; the one that was killed is left out. The files are made in a temporary directory and deleted. Results are
kept in ``benchmarks/cluster.json`` with the load of the machine before each run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "cluster.json"
INPUTS = [f"x{i}" for i in range(40)]
NOISE = 0.1
LAM = 1e-3
PROBES = 256
ALONE = 10
"""Files whose intervals are also computed without a cluster."""


# -- data and models ---------------------------------------------------------------------------
def draw(count: int, seed: int) -> Any:
    """Return made rows as a frame."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((count, len(INPUTS))), columns=INPUTS)
    frame["y"] = (
        np.sin(frame["x0"]) + frame["x1"] * frame["x2"] + 0.5 * frame["x3"] + NOISE * rng.standard_normal(count)
    )
    return frame


def make_files(folder: Path, files: int, rows: int) -> int:
    """Write the files, and return their bytes."""
    folder.mkdir()
    for at in range(files):
        draw(rows, seed=at).to_parquet(folder / f"part-{at:03}.parquet", index=False)
    return sum(file.stat().st_size for file in folder.iterdir())


def save_estimator(folder: Path) -> int:
    """Fit an estimator to 2,000 rows, save its sketch, and return its parameters."""
    import vhat

    sample = draw(2000, seed=10_000)
    network = vhat.NetworkRegressor(hidden_layer_sizes=(4,), weight_decay=1e-2, random_state=0)
    sketch = network.fit(sample[INPUTS], sample["y"]).sketch()
    sketch.save(folder)
    return len(INPUTS) * 4 + 4 + 4 + 1


def trained_module() -> Any:
    """Return a small network after some steps of Adam on 2,000 rows."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sample = draw(2000, seed=10_000)
    X, y = torch.tensor(sample[INPUTS].to_numpy()), torch.tensor(sample["y"].to_numpy())
    module = torch.nn.Sequential(
        torch.nn.Linear(len(INPUTS), 4), torch.nn.Tanh(), torch.nn.Linear(4, 1), torch.nn.Flatten(0)
    ).double()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        (module(X) - y).square().mean().backward()
        optimizer.step()
    return module.eval()


# -- clusters ----------------------------------------------------------------------------------
@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Yield a cluster of processes with one thread each."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    ) as started:
        started.wait_for_workers(workers)
        with distributed.Client(started) as client:
            client.run(import_all)
        yield started


def import_all() -> None:
    """Import what tasks need, as a cluster that has served before would have."""
    import importlib

    for name in ("torch", "vhat", "vhat.cli.directories.partition", "vhat.estimator", "vhat.linalg.solvers.cluster"):
        importlib.import_module(name)


def processes(started: Any) -> list[int]:
    return [nanny.process.pid for nanny in started.workers.values()]


def use(pid: int) -> tuple[float, float]:
    """Return GB at the peak and CPU seconds of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return peak / 1e9, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(
    started: Any, work: Callable[[], Any], victim: Callable[[], bool] | None = None
) -> tuple[dict[str, Any], Any]:
    """Run the work and return what it took; a worker is killed as soon as ``victim`` says so."""
    load = os.getloadavg()[0]
    before = set(processes(started))
    ended = threading.Event()
    killed: list[float] = []

    def kill() -> None:
        while not ended.is_set():
            if victim is not None and victim():
                os.kill(processes(started)[0], signal.SIGKILL)
                killed.append(time.perf_counter() - began)
                return
            time.sleep(0.05)

    watcher = threading.Thread(target=kill, daemon=True)
    began = time.perf_counter()
    watcher.start()
    found = work()
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    if victim is not None and not killed:
        raise RuntimeError("the run had ended before a worker could be killed")
    uses = [use(pid) for pid in processes(started)]
    return {
        "seconds": seconds,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "worker_peaks_gb": [peak for peak, _ in uses],
        "worker_cpu": [cpu for _, cpu in uses],
        "killed_after": killed[0] if killed else None,
        "workers_replaced": len(set(processes(started)) - before),
    }, found


# -- predictions -------------------------------------------------------------------------------
def written(folder: Path) -> dict[str, str]:
    """Return digests of all files of intervals."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.parquet"))}


def predict(model: Path, rows: Path, out: Path, *options: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "vhat.cli", "predict", str(model), str(rows), "--out", str(out)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)


def finished(out: Path) -> int:
    record = out / "_vhat_predict.jsonl"
    return len(record.read_text().splitlines()) - 1 if record.exists() else 0


def run_predictions(place: Path, rows: Path) -> dict[str, Any]:
    model = place / "model"
    found: dict[str, Any] = {"p": save_estimator(model)}
    count = len(list(rows.iterdir()))
    digests: dict[str, dict[str, str]] = {}
    for name, workers in (("two workers", 2), ("one worker", 1), ("two workers, one killed", 2)):
        out = place / "out"
        with cluster(workers) as started:

            def third_written(out: Path = out) -> bool:
                return finished(out) >= count // 3

            options = ("--engine", "dask", "--scheduler", started.scheduler_address)
            victim = third_written if "killed" in name else None
            found[name], _ = timed(
                started, lambda out=out, options=options: predict(model, rows, out, *options), victim
            )
        digests[name] = written(out)
        shutil.rmtree(out)
        tell(f"predict, {name}", found[name])
    some = place / "some"
    some.mkdir()
    for file in sorted(rows.iterdir())[:ALONE]:
        (some / file.name).symlink_to(file)
    began = time.perf_counter()
    predict(model, some, place / "out")
    alone = written(place / "out")
    shutil.rmtree(place / "out")
    found["without a cluster"] = {"files": len(alone), "seconds": time.perf_counter() - began}
    found["same bytes"] = digests["two workers"] == digests["one worker"] == digests["two workers, one killed"]
    found["same bytes without a cluster"] = all(digests["two workers"][name] == each for name, each in alone.items())
    found["files written"] = len(digests["two workers"])
    found["speed-up"] = found["one worker"]["seconds"] / found["two workers"]["seconds"]
    return found


# -- a sketch ----------------------------------------------------------------------------------
def run_sketch(place: Path, files: Path) -> dict[str, Any]:
    del place
    import distributed

    import vhat
    from vhat.sketch import sketch as module

    module.MOST_EXACT = 0  # V by probes, as for larger models
    rows = vhat.Rows.parquet(files, inputs=INPUTS, target="y")
    net = trained_module()

    def fitted() -> Any:
        return vhat.from_torch(net, rows, weight_decay=LAM).linearised(LAM)

    began = time.perf_counter()
    held = fitted()
    found: dict[str, Any] = {"p": held.problem.p, "rows": held.problem.n, "blocks": len(rows.blocks)}
    found["rows read here, seconds"] = time.perf_counter() - began
    sketches = {}
    for name, workers in (("two workers", 2), ("one worker", 1), ("two workers, one killed", 2)):
        with cluster(workers) as started, distributed.Client(started) as client:
            asked = fitted()  # nothing is kept from the run before
            until = [0.0]
            if "killed" in name:
                until = [time.perf_counter() + found["two workers"]["seconds"] / 3]
            victim = (lambda until=until: time.perf_counter() > until[0]) if "killed" in name else None
            found[name], sketches[name] = timed(
                started,
                lambda asked=asked, client=client: asked.sketch(PROBES, noise=NOISE, engine=client),
                victim,
            )
        tell(f"sketch, {name}", found[name])
    asked = fitted()
    load, cpu, began = os.getloadavg()[0], time.process_time(), time.perf_counter()
    here = asked.sketch(PROBES, noise=NOISE, solver=vhat.Primal())
    found["this process"] = {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "load_before": load,
        "peak_gb": use(os.getpid())[0],
    }
    x = np.random.default_rng(1).standard_normal((200, len(INPUTS)))
    first = sketches["two workers"].roots
    others = [sketches[name].roots for name in ("one worker", "two workers, one killed")]
    found["same bits"] = all(
        np.array_equal(first.variance, other.variance) and np.array_equal(first.rest, other.rest) for other in others
    )
    ratio = sketches["two workers"].interval(x).standard_error / here.interval(x).standard_error
    found["largest difference from this process"] = float(np.abs(ratio - 1).max())
    found["speed-up"] = found["one worker"]["seconds"] / found["two workers"]["seconds"]
    return found


def tell(name: str, found: dict[str, Any]) -> None:
    print(name, json.dumps(found), flush=True)


RUNS = {"predict": run_predictions, "sketch": run_sketch}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="*", default=list(RUNS))
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=31_250)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        need = 2 * 8 * (len(INPUTS) + 1) * asked.files * asked.rows
        if shutil.disk_usage(place).free < need:
            raise SystemExit(f"{place} has less than {need / 1e9:.1f} GB free")
        size = make_files(place / "rows", asked.files, asked.rows)
        print(f"{asked.files} files, {asked.files * asked.rows:,} rows, {size / 1e9:.2f} GB", flush=True)
        for name in asked.runs:
            found = RUNS[name](place, place / "rows")
            kept[name] = {"files": asked.files, "rows": asked.files * asked.rows, "bytes": size} | found
            asked.out.write_text(json.dumps(kept, indent=1) + "\n")
            print(json.dumps(kept[name], indent=1), flush=True)


if __name__ == "__main__":
    main()
