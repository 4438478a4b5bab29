"""``python -m tests.hostile.load``: one model under load, with the numbers of the closed form throughout.

Each part takes its size as an argument; the tests run small ones, ``--full`` the ones that SECURITY.md gives.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import vhat
from tests.hostile import ridge
from tests.hostile.calls import _band, _wanted

MODEL = (ridge.linear, ridge.design)
WARM_UP = 0.2
"""The share of calls after which memory is measured for the first time."""
OTHER = 0.4
"""The weight decay of the model that takes turns with the other in being saved."""


def _ask(fitted: Any, number: int) -> np.ndarray:
    return _band(fitted.interval(ridge.POINTS + 0.01 * (number % 50)))


def _expected(number: int) -> np.ndarray:
    return _wanted(points=ridge.POINTS + 0.01 * (number % 50))


def _check(found: dict[int, list[np.ndarray]]) -> int:
    """Require that all askers got the same bits, and those of the closed form up to rounding; return how many asked."""
    asked = 0
    for number, answers in found.items():
        for each in answers:
            np.testing.assert_array_equal(each, answers[0])
            asked += 1
        np.testing.assert_allclose(answers[0], _expected(number), rtol=1e-7)
    return asked


# -- threads and processes -------------------------------------------------------------------------------
def threads(each: int, count: int = 8) -> str:
    """Ask one fitted model from several threads at once."""
    fitted = ridge.from_numpy()
    with warnings.catch_warnings(), ThreadPoolExecutor(count) as pool:
        warnings.simplefilter("ignore")
        tasks = [(number, pool.submit(_ask, fitted, number)) for number in range(each) for _ in range(count)]
        found: dict[int, list[np.ndarray]] = {}
        for number, task in tasks:
            found.setdefault(number % 50, []).append(task.result())
    return f"{_check(found):,} questions to one model by {count} threads: equal bits"


def _ask_saved(arguments: tuple[str, int]) -> list[np.ndarray]:
    folder, each = arguments
    warnings.simplefilter("ignore")
    fitted = vhat.load(folder, model=MODEL)
    return [_ask(fitted, number) for number in range(each)]


def processes(each: int, count: int = 8) -> str:
    """Ask one saved model from several processes at once."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(count) as pool:
        ridge.from_numpy().save(folder)
        answers = pool.map(_ask_saved, [(folder, each)] * count, chunksize=1)
    found: dict[int, list[np.ndarray]] = {}
    for answer in answers:
        for number, one in enumerate(answer):
            found.setdefault(number % 50, []).append(one)
    return f"{_check(found):,} questions to one saved model by {count} processes: equal bits"


# -- saves beside loads ------------------------------------------------------------------------------------
def _save_in_turns(folder: str, count: int) -> None:
    warnings.simplefilter("ignore")
    models = [_of_decay(ridge.LAM), _of_decay(OTHER)]
    for number in range(count):
        models[(number + 1) % 2].save(folder)


def _of_decay(lam: float) -> Any:
    n = len(ridge.X)
    theta = np.linalg.solve(ridge.X.T @ ridge.X / n + lam * np.eye(2), ridge.X.T @ ridge.Y / n)
    return ridge.from_numpy(theta=theta, weight_decay=lam)


def saves(count: int) -> str:
    """Save two models in turns into one directory while others load it: each load is one of the two, whole."""
    wanted = [_wanted(), _wanted(lam=OTHER)]
    found: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = str(Path(root) / "model")
        _of_decay(ridge.LAM).save(folder)
        saver = multiprocessing.get_context("spawn").Process(target=_save_in_turns, args=(folder, count))
        saver.start()
        while saver.is_alive() or found.total() < count:
            answer = _band(vhat.load(folder, model=MODEL).interval(ridge.POINTS))
            equal = [bool(np.allclose(answer, each, rtol=1e-7)) for each in wanted]
            assert any(equal), answer
            found[equal.index(True)] += 1
        saver.join()
        assert saver.exitcode == 0
    return f"{count:,} saves beside {found.total():,} loads: {found[0]:,} of one model, {found[1]:,} of the other"


# -- one process, many commands ------------------------------------------------------------------------------
def _memory(process: int | None = None) -> int:
    """Resident memory of a process, in bytes."""
    return int(psutil.Process(process).memory_info().rss)


def _predict_often(count: int) -> None:
    from tests.hostile.commands import table
    from vhat.cli import app

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        Path("data.csv").write_bytes(table(40, 1))
        Path("new.csv").write_bytes(table(12, 2))
        fit = ["fit", "data.csv", "--target", "y", "--hidden", "0", "--weight-decay", "0.01", "--quiet"]
        seen = set()
        measured = []
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app(fit, standalone_mode=False)
            for number in range(count):
                app(["predict", "model", "new.csv", "--out", "out.csv", "--force", "--quiet"], standalone_mode=False)
                seen.add(Path("out.csv").read_bytes())
                if number >= WARM_UP * count:
                    measured.append(_memory())
        print(json.dumps({"outputs": len(seen), "first": measured[0], "last": measured[-1]}), file=sys.__stdout__)


def predictions(count: int) -> str:
    """Call ``vhat predict`` again and again in one process: the same file every time, and no growing memory."""
    code = f"from tests.hostile.load import _predict_often; _predict_often({count})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["outputs"] == 1
    growth = found["last"] / found["first"] - 1
    assert growth < 0.05, found
    return f"{count:,} calls of vhat predict in one process: one output, memory {growth:+.1%} after the warm-up"


# -- the HTTP example ------------------------------------------------------------------------------------
@contextlib.contextmanager
def _server() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    from tests.hostile import requests

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["uvicorn", "--factory", "examples.serve:application", "--port", str(port), "--log-level", "critical"]
    environment = os.environ | {"VHAT_MODEL": str(requests.model())}
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=root, env=environment)
    try:
        while _sent(port, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[:12] != b"HTTP/1.1 200":
            assert process.poll() is None, "the server did not start"
            time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(60)


def _sent(port: int, content: bytes) -> bytes:
    """Send bytes and return what comes; nothing where the server hangs up or is not there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return b""


MALFORMED = [
    b"\x16\x03\x01\x00\xff", b"GET\r\n\r\n", b"POST /intervals HTTP/9.9\r\n\r\n", b"\r\n" * 50, b"A" * 70_000,
    b"POST /intervals HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000,
    b"POST /intervals HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
    b"POST /intervals HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
]  # fmt: skip
"""What is not HTTP, or ends too early."""


def _request(port: int, number: int) -> str:
    """Send one request, by its number; return the name of its outcome."""
    from tests.hostile import requests

    rng = random.Random(f"load {number}")
    if rng.random() < 0.1:
        answer = _sent(port, rng.choice(MALFORMED))
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]
        return "malformed"
    case = requests.draw(rng)
    while case["act"] in ("place", "header"):  # bytes that a client of HTTP does not let through
        case = requests.draw(rng)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/intervals", requests.body(case))
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if len(requests.body(case)) > 25_000 and response.status == 413:
        return "refused"
    found = requests.judged(case, response.status, text)
    if case["act"] == "body" and response.status == 200:  # the limits of this server are larger than those of the tests
        return "answered"
    assert not found.fails, (case, found)
    return found.name


def http_requests(count: int, clients: int = 8) -> str:
    """Send requests to the HTTP example from several threads, a tenth of them no HTTP, most others no good ones."""
    with _server() as (port, process):
        warm = int(WARM_UP * count)
        with ThreadPoolExecutor(clients) as pool:
            found = Counter(pool.map(lambda number: _request(port, number), range(warm)))
            first = _memory(process.pid)
            found += Counter(pool.map(lambda number: _request(port, number), range(warm, count)))
        last = _memory(process.pid)
        assert process.poll() is None
    outcomes = ", ".join(f"{name} {number:,}" for name, number in found.most_common())
    return (
        f"{found.total():,} requests by {clients} clients: {outcomes}; memory {last / first - 1:+.1%} after the warm-up"
    )


PARTS: dict[str, tuple[Callable[[int], str], int, int]] = {
    "threads": (threads, 20, 500),
    "processes": (processes, 5, 200),
    "saves": (saves, 20, 1_000),
    "predictions": (predictions, 25, 1_000),
    "requests": (http_requests, 200, 10_000),
}
"""Each part, its size in the tests and in full."""


def main(arguments: list[str] | None = None) -> None:
    """Run some parts and print a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile.load", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--full", action="store_true", help="with the numbers of SECURITY.md")
    options = parser.parse_args(arguments)
    for name in options.parts:
        run, small, full = PARTS[name]
        print(run(full if options.full else small), flush=True)


if __name__ == "__main__":
    main()
