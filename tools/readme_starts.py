"""Run the quick starts of the README as they are printed, with the vhat that is installed beside this Python.

    python tools/readme_starts.py            every quick start
    python tools/readme_starts.py --no-torch all but those that import torch

Each block runs in a process of its own, in an empty directory, with nothing of this repository on its path: what works
here works for someone who has the wheel and the README. The exit status is 0 if all of them ran.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    """Return the Python blocks of the README, in order."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def runs(block: str) -> bool:
    """Run one block in a new process, isolated from this repository, and return whether it ended well."""
    with tempfile.TemporaryDirectory() as empty:
        # -I leaves out PYTHONPATH, the user's packages and the current directory.
        done = subprocess.run([sys.executable, "-I", "-c", block], cwd=empty, check=False)
    return done.returncode == 0


def main() -> int:
    """Run the blocks and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-torch", action="store_true", help="leave out blocks that import torch")
    without_torch = parser.parse_args().no_torch
    failed = 0
    for number, block in enumerate(blocks(), 1):
        title = f"quick start {number}"
        if without_torch and "import torch" in block:
            print(f"== {title}: needs torch, left out", flush=True)
            continue
        print(f"== {title}", flush=True)
        if not runs(block):
            print(f"== {title} failed", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
