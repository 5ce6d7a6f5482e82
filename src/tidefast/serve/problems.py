"""What is answered when there is no answer."""

from __future__ import annotations

import math
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from tidefast.serve.refused import RefusedError
from tidefast.serve.schemas import decoded_name_or_none

_RETRY = 1  # seconds after which it is worth trying again when the service is busy


def problem(status: int, reason: str, detail: str, wait: float = 0.0, *, path: str) -> JSONResponse:
    """The answer to a request that gets no other, in the form that `path` speaks.

    wait: seconds after which to try again.
    """
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(_RETRY, math.ceil(wait)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    ours = not (path == "/v2" or path.startswith("/v2/"))
    return JSONResponse({"reason": reason, "detail": detail} if ours else {"error": detail}, status, headers)


def add_errors(app: FastAPI, refused: Callable[..., JSONResponse]) -> None:
    """Whatever goes wrong becomes a problem; `refused` makes it from a RefusedError, path and stream, and counts it."""

    @app.exception_handler(RefusedError)
    async def _(request: Request, error: RefusedError) -> JSONResponse:
        return refused(error, request.url.path, decoded_name_or_none(request.path_params.get("name")))

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        return refused(RefusedError("unfit", faults), request.url.path)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        reason = {404: "unknown"}.get(error.status_code, "malformed")
        answer = problem(error.status_code, reason, str(error.detail), path=request.url.path)
        if error.status_code == 405:  # each verb is a route of its own, and each knows only itself
            routes = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
            answer.headers["Allow"] = ", ".join(
                sorted({verb for route in routes for verb in getattr(route, "methods", ())})
            )
        return answer

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> JSONResponse:
        return refused(RefusedError("failed", "the service failed on this request; its log says why"), request.url.path)
