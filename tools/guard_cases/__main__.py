"""Run cases on one checkout and save what they record: the process that ``tools/guard.py`` starts.

python -m guard_cases SRC FOLDER LABEL CASE...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from guard_cases import record, registry


def main(source: str, folder: str, label: str, *cases: str) -> None:
    """Run the cases with the vhat of one source directory.

    Args:
        source: The directory that holds the package; another vhat that Python finds first is an error.
        folder: Where the entries are written.
        label: What the lines of progress begin with.
        cases: Names of cases.
    """
    import vhat

    place = vhat.__file__  # None for a directory without __init__.py
    if place is None or not Path(place).resolve().is_relative_to(Path(source).resolve()):
        sys.exit(f"vhat was imported from {place}, which is not inside {source}.")
    if "torch" in {registry.framework_of(name) for name in cases}:
        import torch

        torch.set_num_threads(1)
    found = {}
    for name in cases:
        began = time.process_time()
        found[name] = registry.run(name)
        took = time.process_time() - began
        print(f"{label:<8}{name:<24}{len(found[name]):>5} entries {took:>6.1f} s", flush=True)
    record.save(found, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
