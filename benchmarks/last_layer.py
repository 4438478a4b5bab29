"""The last layer behind a network, from a million rows on disk: time against one pass of the network, and peak memory.

Data are made: 16 inputs, responses with unit noise, a network 16-256-256-64-1 with random weights. Three child
processes with one thread each: one that imports everything and stops, one that passes the network in single precision
over a DataLoader, and one that makes ``from_torch(..., parameters="last")`` from the same loader, polishes it and asks
for 1000 intervals. Reported are CPU seconds, and the peak of resident memory of each child.

    python -m benchmarks.last_layer [--rows 1000000] [--batch 1024] [--folder DIR]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

INPUTS = 16
POINTS = 1000
_BLOCK = 100_000
"""Rows that are made at a time."""


def make_rows(path: Path, rows: int) -> None:
    """Write made inputs and responses, (rows, 17) in single precision, to one file."""
    rng = np.random.default_rng(0)
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, INPUTS + 1))
    for start in range(0, rows, _BLOCK):
        x = rng.standard_normal((min(_BLOCK, rows - start), INPUTS))
        y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + rng.standard_normal(len(x))
        table[start : start + len(x)] = np.c_[x, y]
    table.flush()


def loader_of(path: Path, batch: int) -> Any:
    """Return a DataLoader over the rows on disk."""
    import torch

    class Disk(torch.utils.data.Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            self.table = np.load(path, mmap_mode="r")

        def __len__(self) -> int:
            return len(self.table)

        def __getitem__(self, index: int) -> Any:
            row = torch.from_numpy(np.array(self.table[index]))
            return row[:-1], row[-1]

    return torch.utils.data.DataLoader(Disk(), batch_size=batch)


def network() -> Any:
    """Return a network with random weights."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    widths = (INPUTS, 256, 256, 64)
    layers: list[Any] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1), nn.Flatten(0)).eval()


def run_child(what: str, path: Path, batch: int) -> dict[str, Any]:
    """Do one part and return CPU seconds, the peak of resident memory in GB, and more."""
    import torch

    import vhat

    module, loader = network(), loader_of(path, batch)
    vhat.FittedModel  # noqa: B018  (imports are counted nowhere)
    found: dict[str, Any] = {}
    start = time.process_time()
    if what == "pass":
        with torch.no_grad():
            for x, _ in loader:
                module(x)
    elif what == "ours":
        fitted = vhat.from_torch(module, loader, weight_decay=1e-4, parameters="last")
        found["from_torch"] = time.process_time() - start
        fitted = fitted.polish()
        found["polish"] = time.process_time() - start - found["from_torch"]
        band = fitted.interval(np.random.default_rng(1).standard_normal((POINTS, INPUTS)))
        assert band.bound == "exact"
        assert np.isfinite(band.half_width).all()
        found["noise"] = band.noise
    found["seconds"] = time.process_time() - start
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return found


def main() -> None:
    """Make the rows, run the children and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--child", choices=("nothing", "pass", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.child, options.path, options.batch)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rows.npy"
        make_rows(path, options.rows)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        found = {}
        for child in ("nothing", "pass", "ours"):
            command = [sys.executable, "-m", "benchmarks.last_layer", "--child", child, "--path", str(path)]
            command += ["--batch", str(options.batch)]
            done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=True)
            found[child] = json.loads(done.stdout.splitlines()[-1])
    ours, once = found["ours"], found["pass"]
    print(f"rows                         {options.rows:,}")
    print(f"one pass of the network      {once['seconds']:.1f} CPU s, peak {once['peak']:.2f} GB")
    print(f"from_torch                   {ours['from_torch']:.1f} CPU s")
    print(f"polish                       {ours['polish']:.1f} CPU s")
    print(f"{POINTS} intervals               {ours['seconds'] - ours['from_torch'] - ours['polish']:.1f} CPU s")
    print(f"altogether                   {ours['seconds']:.1f} CPU s, peak {ours['peak']:.2f} GB")
    print(f"imports alone                peak {found['nothing']['peak']:.2f} GB")
    print(f"ratio to one pass            {ours['seconds'] / once['seconds']:.2f}")


if __name__ == "__main__":
    main()
