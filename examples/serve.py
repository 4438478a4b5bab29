"""Intervals over HTTP, from a model that was saved without its training rows.

::

    vhat sketch model --out deployed
    pip install fastapi uvicorn pyarrow
    VHAT_MODEL=deployed uvicorn --factory examples.serve:application
    curl localhost:8000/intervals -H 'Content-Type: application/json' \
        -d '{"rows": [{"depth": 1.5, "salt": 35}], "delta": 0.1, "target": "observation"}'

The answer has one entry a row: ``{"intervals": [{"center": ..., "lower": ..., "upper": ..., "unsupported": ...,
"status": "converged"}]}``. Any other status says why a row has no interval, or why it should not be relied on. For a
wrong request the answer is ``{"error": {"type": "InputError", "message": "..."}}``, with the HTTP status 400; 413 if
the request is too large, 422 if the model cannot answer. Put a proxy with time-outs, TLS and authentication in front
of the service: this example has none.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import vhat
from vhat.cli.directories import FramePredictor
from vhat.cli.directories.worker_models import loaded_model

if TYPE_CHECKING:
    import pandas as pd
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

MOST_BYTES = 1_000_000
"""Largest body of a request."""
MOST_ROWS = 1_000
"""Most rows in a request."""
NUMBERS = ("center", "lower", "upper", "unsupported")
TARGETS = ("mean", "observation")
FIELDS = {"rows", "delta", "target"}


class TooLarge(vhat.InputError):
    """The request has too many bytes or rows."""


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    Attributes:
        body: Most bytes of its body.
        rows: Most rows in it.
    """

    body: int = MOST_BYTES
    rows: int = MOST_ROWS


def application(model: str | None = None, limits: Limits | None = None) -> FastAPI:
    """Return the application.

    Args:
        model: The directory of a sketch, or of an estimator; None for the environment variable ``VHAT_MODEL``.
        limits: Limits of one request.

    Raises:
        StoreError: When there is no model.
    """
    from fastapi import FastAPI, Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse

    bounds = limits or Limits()
    directory = model or os.environ["VHAT_MODEL"]
    loaded_model(directory)  # load it now, so that the first request does not wait and a missing model stops the start
    app = FastAPI(title="vhat")

    async def intervals(request: Request) -> JSONResponse:
        body = await _body(request, bounds.body)
        found = await run_in_threadpool(_answer, directory, body, bounds)
        return JSONResponse({"intervals": found})

    async def refused(_request: Request, error: Exception) -> JSONResponse:
        said = {"type": type(error).__name__, "message": str(error)}
        return JSONResponse({"error": said}, status_code=_status(error))

    # FastAPI evaluates annotations in this module, where Request is imported for the type checker only
    intervals.__annotations__["request"] = Request
    app.add_api_route("/intervals", intervals, methods=["POST"], response_model=None)
    app.add_api_route("/health", lambda: {"status": "ready"}, methods=["GET"])
    app.add_exception_handler(vhat.VhatError, refused)
    return app


def _status(error: Exception) -> int:
    if isinstance(error, TooLarge):
        return 413
    return 400 if isinstance(error, vhat.InputError) else 422


async def _body(request: Request, most: int) -> bytes:
    """Read the body, and stop as soon as it is too long: the length in the header may be wrong."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLarge(f"the body has more than {most:,} bytes. Send fewer rows at a time.")
        parts.append(part)
    return b"".join(parts)


def _parsed(body: bytes, limits: Limits) -> tuple[pd.DataFrame, float, str]:
    """Return the rows as a frame, delta and target.

    Raises:
        InputError: Saying what is wrong with the request.
    """
    import pandas as pd

    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise vhat.InputError(f"the body is not JSON: {error}.") from None
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise vhat.InputError('the body must be an object with a list of rows, such as {"rows": [{"x": 1.0}]}.')
    unknown = sorted(set(content) - FIELDS)
    if unknown:
        raise vhat.InputError(f"the body has the unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}.")
    rows = content["rows"]
    if not rows:
        raise vhat.InputError("rows is empty. Send at least one.")
    if len(rows) > limits.rows:
        raise TooLarge(f"{len(rows):,} rows in one request, of at most {limits.rows:,}. Send them in several.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != rows[0].keys():
            raise vhat.InputError(f"row {number} is not an object with the names of row 0. Give all the same names.")
        if any(isinstance(value, dict | list) for value in row.values()):
            raise vhat.InputError(f"row {number} holds a list or an object. Give numbers, text, true, false or null.")
        if not all(_is_unicode(each) for each in (*row, *row.values())):
            raise vhat.InputError(f"row {number} holds half of a surrogate pair, which is no character.")
    target = content.get("target", "mean")
    if target not in TARGETS:
        raise vhat.InputError(f"target={target!r} is neither 'mean' nor 'observation'.")
    delta = content.get("delta", 0.05)
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise vhat.InputError(f"delta={delta!r} is not a number between 0 and 1: 0.05 asks for 95% confidence.")
    return pd.DataFrame(rows), float(delta), target


def _is_unicode(value: object) -> bool:
    """Whether text can be written as UTF-8: half of a surrogate pair, which JSON may contain, cannot."""
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)


def _answer(directory: str, body: bytes, limits: Limits) -> list[dict[str, Any]]:
    """Return the intervals of the rows of a request as values of JSON."""
    frame, delta, target = _parsed(body, limits)
    found = FramePredictor(directory, delta, target)(frame)
    return [
        {name: _number(row[name]) for name in NUMBERS} | {"status": row["status"]} for row in found.to_dict("records")
    ]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
