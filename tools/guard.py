"""Compare two commits number by number: V, intervals, audits, polish, leave-one-out, in NumPy, torch and JAX.

python tools/guard.py BEFORE [AFTER] [--rtol 0] [--cases PATTERN] [--jobs 1] [--ignore-words] [--verbose]

BEFORE and AFTER are git revisions; AFTER is the working tree where it is left out. Both run the cases of this checkout
(``tools/guard_cases``), each in processes of its own with one thread. Nothing is stored.

Exit status: 0 where all entries are equal, 1 where some differ, 2 where the cases could not be run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import guard_compare
from guard_cases import names, record
from guard_cases.registry import framework_of

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Sums in one order on every run: one thread, no order that depends on hashes of texts, no accelerator."""


class GuardError(Exception):
    """The cases could not be run."""


@dataclass
class Processes:
    """The processes that are running, so that all of them can be stopped."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: bool = False

    def run(self, command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
        """Run one command to its end; its standard output is ours, its errors are shown if it fails.

        Raises:
            GuardError: When it does not succeed.
        """
        if self.stopped:
            return
        with tempfile.TemporaryFile(mode="w+", dir=folder) as errors:
            process = subprocess.Popen(command, env=environment, cwd=folder, stderr=errors)
            self.running.append(process)
            code = process.wait()
            self.running.remove(process)
            if code != 0 and not self.stopped:
                errors.seek(0)
                raise GuardError(f"{' '.join(command[:6])} ... ended with status {code}:\n{errors.read()[-4000:]}")

    def stop(self) -> None:
        """End every process that was started here."""
        self.stopped = True
        for process in list(self.running):
            process.terminate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _options(arguments)
    try:
        findings = _compare(options)
    except KeyboardInterrupt:
        print("guard: interrupted", file=sys.stderr)
        return 2
    except GuardError as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2
    for line in guard_compare.table(findings, verbose=options.verbose):
        print(line)
    different = sum(not finding.equal for finding in findings)
    print(f"\n{len(findings)} entries, {different} different")
    return 1 if different else 0


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Treat a request to end like Ctrl-C, so that worktrees are removed."""
    raise KeyboardInterrupt


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="guard.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a git revision")
    parser.add_argument("after", nargs="?", help="a git revision; the working tree by default")
    parser.add_argument("--rtol", type=float, default=0.0, help="relative tolerance; 0 asks for equal bits")
    parser.add_argument("--cases", default="*", help="pattern of cases, such as 'numpy/*' or 'ridge'")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--ignore-words", action="store_true", help="compare numbers and statuses only")
    parser.add_argument("--verbose", action="store_true", help="show every entry")
    options = parser.parse_args(arguments)
    if not options.rtol >= 0:
        parser.error(f"--rtol {options.rtol} must be 0 or more.")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} must be 1 or more.")
    return options


def _compare(options: argparse.Namespace) -> list[guard_compare.Finding]:
    """Run the cases on both sides and compare what they recorded.

    Raises:
        GuardError: When no case matches, a revision is unknown, or a process fails.
    """
    cases = names(options.cases)
    if not cases:
        raise GuardError(f"no case matches {options.cases!r}; the cases are {', '.join(names())}")
    with tempfile.TemporaryDirectory(prefix="vhat-guard-") as made:
        folder = Path(made)
        with checkout(options.before, folder / "before") as before, checkout(options.after, folder / "after") as after:
            run_cases({"before": before, "after": after}, cases, folder, options.jobs)
        sides = [
            {case: entries for part in sorted(folder.glob(f"{side}-*")) for case, entries in record.load(part).items()}
            for side in ("before", "after")
        ]
    in_order = [{case: side[case] for case in cases} for side in sides]
    return guard_compare.compare(*in_order, rtol=options.rtol, ignore_words=options.ignore_words)


@contextmanager
def checkout(revision: str | None, folder: Path) -> Iterator[Path]:
    """Yield a directory with the files of a revision, removed afterwards; the working tree for None.

    Raises:
        GuardError: For an unknown revision.
    """
    if revision is None:
        yield ROOT
        return
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    try:
        _git("worktree", "add", "--quiet", "--detach", str(folder), commit)
        yield folder
    finally:
        if folder.exists():
            _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GuardError(f"git {' '.join(arguments)} failed: {done.stderr.strip() or 'unknown revision'}")
    return done.stdout


def run_cases(trees: dict[str, Path], cases: Sequence[str], folder: Path, jobs: int) -> None:
    """Run the cases on each tree, one process a framework, and leave their records in ``folder/side-framework``.

    Raises:
        GuardError: When a process fails.
    """
    processes = Processes()
    pool = ThreadPoolExecutor(jobs)
    # both sides are given JAX's cache of compiled programs, but only where they do not write to it at the same time
    cache = folder / "programs" if jobs == 1 else None
    try:
        tasks = []
        for framework in dict.fromkeys(framework_of(case) for case in cases):
            own = [case for case in cases if framework_of(case) == framework]
            for side, tree in trees.items():
                source = tree / "src"
                out = folder / f"{side}-{framework}"
                command = [sys.executable, "-P", "-m", "guard_cases", str(source), str(out), side, *own]
                tasks.append(pool.submit(processes.run, command, environment(source, cache), folder))
        done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        processes.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def environment(source: Path, cache: Path | None = None) -> dict[str, str]:
    """Return the variables of a process that takes vhat from ``source`` and the cases from here."""
    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([str(source), str(TOOLS)])}
    if cache is not None:
        variables["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    return variables


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
