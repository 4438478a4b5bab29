"""``python -m tests.hostile``: seeded campaigns, counted by outcome; every failure is kept as a case that tests replay.

A case is told by the seed, its kind and its number, so that a campaign can be run in slices: what was run of a seed is
kept in a file, and the next call goes on behind it until there are as many cases as asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections import Counter
from pathlib import Path

from tests.hostile import calls, commands, derived, files, kills, requests, tables

CASES = Path(__file__).parent / "cases"
KINDS = {
    "calls": calls,
    "derived": derived,
    "files": files,
    "commands": commands,
    "tables": tables,
    "requests": requests,
    "kills": kills,
}


def case_of(kind: str, seed: int, number: int):
    """Return a case by its number."""
    return KINDS[kind].draw(random.Random(f"{kind} {seed} {number}"))


def keep(kind, case, outcome, folder: Path = CASES) -> Path:
    """Write a failure down."""
    text = json.dumps({"kind": kind, "case": case, "found": f"{outcome.name}: {outcome.told[:500]}"}, indent=1)
    path = folder / f"{kind}-{hashlib.sha256(json.dumps(case).encode()).hexdigest()[:10]}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    return path


def main(arguments=None) -> int:
    """Run what is missing of a campaign; return 1 where a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__.split("\n", maxsplit=1)[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N", help=f"so many {kind} in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; the next call goes on")
    parser.add_argument("--state", type=Path, default=Path(".hostile"), help="folder that says what was run")
    options = parser.parse_args(arguments)
    options.state.mkdir(exist_ok=True)
    path = options.state / f"{options.seed}.json"
    state = json.loads(path.read_text()) if path.exists() else {}
    until = time.monotonic() + options.seconds
    for kind, module in KINDS.items():
        done = Counter(state.get(kind, {}))
        wanted = getattr(options, kind)
        while done.total() < wanted and time.monotonic() < until:
            case = case_of(kind, options.seed, done.total())
            outcome = module.run(case)
            if outcome.fails:
                print(f"{keep(kind, case, outcome)}: {outcome.name}: {outcome.told[:200]}", flush=True)
            done[outcome.name] += 1
            state[kind] = dict(done)
            whole = path.with_suffix(".new")  # a campaign may be killed at any time
            whole.write_text(json.dumps(state, indent=1))
            whole.replace(path)
        if done:
            print(f"{kind}: {done.total():,} of {max(wanted, done.total()):,}; ", end="")
            print(", ".join(f"{name} {count:,}" for name, count in done.most_common()), flush=True)
    failed = sum(count for kind in state.values() for name, count in kind.items() if name in FAILURES)
    return int(failed > 0)


FAILURES = ("wrong", "raw", "mute", "hang")

if __name__ == "__main__":
    raise SystemExit(main())
