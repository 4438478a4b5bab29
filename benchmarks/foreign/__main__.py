"""Answer requests until the input ends."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def make(name: str, file: str, options: dict[str, Any]) -> Any:
    """Import and set up one rival."""
    if name == "curvlinops":
        from benchmarks.foreign.curvlinops_cg import Curvlinops as Rival
    elif name == "laplace":
        from benchmarks.foreign.laplace_full import LaplaceFull as Rival
    elif name == "laplace_shift":
        from benchmarks.foreign.laplace_shift import LaplaceShift as Rival
    elif name == "laplace_sketch":
        from benchmarks.foreign.laplace_sketch import LaplaceSketch as Rival
    elif name == "pydvl":
        from benchmarks.foreign.pydvl_cg import PyDVL as Rival
    else:
        raise ValueError(f"no rival is called {name}")
    return Rival(file, **options)


def main() -> None:
    """One answer a request: {"ok", "seconds", "value"} or {"error"}."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print must not stand between the answers
    rival: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "make" in request:
                rival, seconds, value = make(request["make"], request["file"], request["options"]), 0.0, None
            else:
                now = CLOCKS[request["clock"]]
                began = now()
                value = getattr(rival, request["call"])(**request["arguments"])
                seconds = now() - began
            answer = {"seconds": seconds, "value": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
