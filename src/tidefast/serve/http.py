"""The service over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast
from urllib.parse import unquote

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.routing import Match

import tidefast
from tidefast.serve import images, page
from tidefast.serve.guard import App, Guard
from tidefast.serve.refused import RefusedError
from tidefast.serve.service import Answer, Service

STATUS = {
    "busy": 429,
    "damaged": 409,
    "failed": 500,
    "foreign": 403,
    "malformed": 400,
    "rate": 429,
    "stopping": 503,
    "storage": 503,
    "streams": 409,
    "timeout": 504,
    "too_large": 413,
    "unauthorized": 401,
    "unfit": 422,
    "unknown": 404,
    "unsupported": 415,
}
"""The status of each reason for a refusal."""

_log = logging.getLogger("tidefast.serve")
_SWALLOW = 2.0  # seconds
_RETRY = 1  # seconds after which it is worth trying again when the service is busy


# -- what the documents say -----------------------------------------------------------------------------------------


class Problem(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"reason": "unknown", "detail": "there is no stream 'camera-17'"}}
    )
    reason: str = Field(description="One of: " + ", ".join(sorted(STATUS)))
    detail: str


class Prediction(BaseModel):
    """Of one image."""

    model_config = ConfigDict(populate_by_name=True)
    class_: int = Field(alias="class")
    label: str | None = Field(default=None, description="Left out where the classes have no names.")
    probability: float


class Batch(BaseModel):
    """The batch that a request was part of."""

    size: int
    offset: int = Field(description="How many of its images came before those of the request.")


class Predictions(BaseModel):
    """The answer to images."""

    stream: str
    step: int = Field(description="Adapting calls of the stream so far, this one included.")
    batch: Batch
    predictions: list[Prediction]
    logits: list[list[float]] | None = Field(default=None, description="With logits=true.")
    frozen: bool
    adapted: bool


class AlarmState(BaseModel):
    """An alarm that is on."""

    stream: str | None
    kind: str
    since: float
    message: str
    value: float | None
    bound: float | None
    active: bool


class StreamState(BaseModel):
    """One stream."""

    name: str
    step: int
    frozen: bool
    where: Literal["memory", "disk", "new"]
    last: dict[str, Any] | None
    alarms: list[AlarmState]
    lately: dict[str, Any]


class SnapshotState(BaseModel):
    """One snapshot."""

    name: str
    taken: float | None = None
    streams: int


class Rollback(BaseModel):
    """Where to go back to."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"snapshot": "000012"}})
    snapshot: str = Field(pattern=r"^[0-9]{6,12}$")


class Health(BaseModel):
    """Whether all is well."""

    status: str
    problems: list[str] = []


_DESCRIPTION = """Classifiers that adapt to their own unlabelled, drifting streams.

A stream begins with the first images sent to it. Requests of one stream that come close together make one step; each
answer says at which step, in a batch of which size and from which offset on, so that it can be reproduced. Names of
streams have 1 to 200 printable characters; in an address they are percent-encoded, slashes too.
"""

_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "PNG or JPEG files of one size",
                        }
                    },
                },
                "encoding": {"images": {"contentType": "image/png, image/jpeg"}},
            },
            images.NPY: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "An .npy file: uint8 [N, H, W, 3] or float32 [N, 3, H, W] in [0, 1]",
                }
            },
        },
    }
}
_SECURITY: dict[str, Any] = {"security": [{"token": []}]}
_EXAMPLE = {
    "stream": "camera-17",
    "step": 42,
    "batch": {"size": 16, "offset": 4},
    "predictions": [{"class": 5, "label": "dog", "probability": 0.93}],
    "frozen": False,
    "adapted": True,
}
_SAID = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "The request comes from another site.",
    404: "There is no such stream, snapshot or address.",
    405: "The address does not take this method.",
    408: "The request came too slowly.",
    409: "The state of the service forbids it.",
    413: "The request, an image, or the number of images is too large.",
    415: "The body is of another type.",
    422: "The request can be read but not used.",
    429: "Too many requests, or too much is waiting; see Retry-After.",
    500: "The service failed; its log says why.",
    503: "The service is shutting down, or its disk is full.",
    504: "There was no answer in time.",
}
_ALWAYS = (400, 401, 403, 405, 422, 429, 500, 503)


def _responses(*statuses: int, guarded: bool = True) -> dict[int | str, dict[str, Any]]:
    chosen = sorted({*statuses, *(_ALWAYS if guarded else (405, 500))})
    return {status: {"model": Problem, "description": _SAID[status]} for status in chosen}


Name = Annotated[
    str,
    Path(
        description="The stream, percent-encoded",
        examples=["camera-17"],
        json_schema_extra={"minLength": 1, "maxLength": 200},  # of the name itself, which is checked once decoded
    ),
]


# -- the application ------------------------------------------------------------------------------------------------


def make_app(service: Service) -> FastAPI:
    """The application that serves `service`; it starts with the application and stops with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="tidefast",
        version=tidefast.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        separate_input_output_schemas=False,
    )

    def refused(error: RefusedError, name: str | None = None, wait: float = 0.0) -> JSONResponse:
        service.watch.rejected(name, error.reason)
        return _problem(STATUS[error.reason], error.reason, str(error), wait)

    app.add_middleware(
        cast(Any, Guard), settings=service.settings, refuse=lambda error, wait: cast(App, refused(error, wait=wait))
    )
    _add_errors(app, refused)
    _add_images(app, service, refused)
    _add_streams(app, service)
    _add_whole(app, service)
    _add_pages(app, service)
    _add_document(app, service.settings.token is not None)
    return app


def _problem(status: int, reason: str, detail: str, wait: float = 0.0) -> JSONResponse:
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(_RETRY, math.ceil(wait)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse({"reason": reason, "detail": detail}, status, headers)


def _add_errors(app: FastAPI, refused: Callable[..., JSONResponse]) -> None:
    @app.exception_handler(RefusedError)
    async def _(request: Request, error: RefusedError) -> JSONResponse:
        return refused(error, _decoded_or_none(request.path_params.get("name")))

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3])
        return refused(RefusedError("unfit", said))

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        reason = {404: "unknown"}.get(error.status_code, "malformed")
        answer = _problem(error.status_code, reason, str(error.detail))
        if error.status_code == 405:  # each verb is a route of its own, and each knows only itself
            routes = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
            answer.headers["Allow"] = ", ".join(
                sorted({verb for route in routes for verb in getattr(route, "methods", ())})
            )
        return answer

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> JSONResponse:
        return refused(RefusedError("failed", "the service failed on this request; its log says why"))


def _decoded(name: str) -> str:
    """The name of a stream, from its percent-encoded form."""
    try:
        found = unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise RefusedError("unfit", "the name of a stream must be percent-encoded UTF-8") from None
    if not 0 < len(found) <= 200 or not found.isprintable():
        raise RefusedError("unfit", f"the name of a stream has 1 to 200 printable characters, got {len(found)}")
    return found


def _decoded_or_none(name: str | None) -> str | None:
    with contextlib.suppress(RefusedError):
        return None if name is None else _decoded(name)
    return None


# -- images ---------------------------------------------------------------------------------------------------------


def _add_images(app: FastAPI, service: Service, refused: Callable[..., JSONResponse]) -> None:
    limits = service.settings

    async def pixels_of(request: Request) -> images.Pixels:
        """The images in a request's body."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*images.FORMATS, images.NPY, "multipart/form-data"):
            raise RefusedError(
                "unsupported",
                f"images come as image/png, image/jpeg, multipart/form-data or {images.NPY}, got {kind[:60]!r}",
            )
        body = _bounded(request, limits.max_body)
        if kind == "multipart/form-data":
            files = await _files(request, body, limits.max_batch)
            size = sum(map(len, files)) + 1 + images_are_slow
            return await service.decode(functools.partial(images.decoded, files, limits.max_pixels, service.size), size)
        content = b"".join([chunk async for chunk in body])
        if kind == images.NPY:
            work = functools.partial(images.unpacked, content, limits.max_pixels)
            return await service.decode(work, len(content))
        work = functools.partial(images.decoded, [content], limits.max_pixels, service.size)
        return await service.decode(work, len(content) + images_are_slow)

    images_are_slow = 2**20  # decoding is always worth a thread, however small the file

    async def answered(request: Request, name: str, logits: bool, adapt: bool) -> JSONResponse:
        stream = _decoded(name)
        try:
            async with asyncio.timeout(limits.timeout):
                pixels = await pixels_of(request)
        except TimeoutError:
            service.watch.rejected(stream, "timeout")
            return _problem(408, "timeout", f"the request did not come within {limits.timeout:g} s")
        answer = await service.answer(stream, pixels, adapt=adapt)
        return JSONResponse(_plain(stream, answer, service.labels, logits))

    statuses = (404, 408, 409, 413, 415, 504)
    common: dict[str, Any] = {
        "tags": ["images"],
        "openapi_extra": {**_BODY, **_SECURITY},
        "responses": {
            200: {"model": Predictions, "content": {"application/json": {"example": _EXAMPLE}}},
            **_responses(*statuses),
        },
    }
    wanted = Query(default=False, description="Answer with the logits too.")

    @app.post("/v1/streams/{name}/adapt", summary="Predict, then adapt", **common)
    async def adapt(request: Request, name: Name, logits: bool = wanted) -> Any:
        """Predict classes, and adapt the stream to the images; a frozen stream only predicts."""
        return await answered(request, name, logits, True)

    @app.post("/v1/streams/{name}/predict", summary="Predict only", **common)
    async def predict(request: Request, name: Name, logits: bool = wanted) -> Any:
        """Predict classes; nothing changes. A stream that has not begun answers as the source model."""
        return await answered(request, name, logits, False)


def _plain(stream: str, answer: Answer, labels: list[str] | None, logits: bool) -> dict[str, Any]:
    pairs = zip(answer.classes, answer.probabilities, strict=True)
    if labels is None:
        predictions: list[dict[str, Any]] = [{"class": c, "probability": p} for c, p in pairs]
    else:
        predictions = [{"class": c, "label": labels[c], "probability": p} for c, p in pairs]
    plain = {
        "stream": stream,
        "step": answer.step,
        "batch": {"size": answer.size, "offset": answer.offset},
        "predictions": predictions,
        "frozen": answer.frozen,
        "adapted": answer.adapted,
    }
    return {**plain, "logits": answer.logits.tolist()} if logits else plain


async def _bounded(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body, in pieces, as long as it is not too large."""
    promised = request.headers.get("content-length", "")
    too_large = promised.isdecimal() and int(promised) > most
    seen = 0
    try:
        async with contextlib.aclosing(request.stream()) as stream:
            if not too_large:
                async for chunk in stream:
                    seen += len(chunk)
                    too_large = seen > most
                    if too_large:
                        break
                    yield chunk
            if too_large:
                if "expect" not in request.headers:
                    await _swallow(stream, most)
                raise RefusedError("too_large", f"a request has at most {most} bytes, got {promised or 'more'}")
    except ClientDisconnect:
        raise RefusedError("malformed", "the connection ended before the request did") from None


async def _swallow(stream: AsyncGenerator[bytes, None], most: int) -> None:
    """Let a client that sends too much finish, within reason: most read no answer before they have."""
    seen = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_SWALLOW):
            async for chunk in stream:
                seen += len(chunk)
                if seen > most:
                    return


async def _files(request: Request, body: AsyncGenerator[bytes, None], most: int) -> list[bytes]:
    """The files called "images" of a form."""
    parser = MultiPartParser(request.headers, body, max_files=most + 1, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise RefusedError("too_large", f"a request holds at most {most} images: send several") from None
        raise RefusedError("malformed", f"the form cannot be read: {error.message}") from None
    except (ValueError, KeyError, AssertionError, UnicodeError) as error:
        raise RefusedError("malformed", "the form cannot be read") from error
    try:
        found = [(key, value) for key, value in form.multi_items() if isinstance(value, UploadFile)]
        strange = [key for key, _ in found if key != "images"]
        if strange or not found:
            raise RefusedError("unfit", f'a form holds files called "images", got {strange[:3] or "none"}')
        if len(found) > most:
            raise RefusedError("too_large", f"a request holds at most {most} images, got {len(found)}: send several")
        return [await value.read() for _, value in found]
    finally:
        await form.close()


# -- streams --------------------------------------------------------------------------------------------------------


def _add_streams(app: FastAPI, service: Service) -> None:
    common: dict[str, Any] = {"tags": ["streams"], "openapi_extra": _SECURITY}

    @app.get(
        "/v1/streams",
        summary="Streams at a glance",
        response_model=list[StreamState],
        responses=_responses(),
        **common,
    )
    async def streams(
        prefix: Annotated[str, Query(max_length=200, description="How the names begin")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[str, Query(max_length=200, description="The last name of the page before")] = "",
        order: Annotated[Literal["name", "attention"], Query()] = "name",
    ) -> Any:
        """By name, or those first that have alarms or were used lately; at most `limit` that come after `after`."""
        return JSONResponse(_finite(await service.listed(prefix, order, after, limit)))

    @app.get(
        "/v1/streams/{name}", summary="One stream", response_model=StreamState, responses=_responses(404), **common
    )
    async def stream(name: Name) -> Any:
        return JSONResponse(_finite(service.status(_decoded(name))))

    @app.get(
        "/v1/streams/{name}/history",
        summary="Its latest steps",
        response_model=list[dict[str, Any]],
        responses=_responses(404),
        **common,
    )
    async def history(name: Name, since: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Any:
        """What is remembered of the steps after `since`, the oldest first; gone after a restart."""
        known = _decoded(name)
        service.status(known)
        return JSONResponse(_finite(service.watch.history(known, since)))

    def action(verb: str, summary: str, do: Callable[[str], Awaitable[None]]) -> None:
        @app.post(
            f"/v1/streams/{{name}}/{verb}",
            summary=summary,
            response_model=StreamState,
            responses=_responses(404),
            operation_id=verb,
            **common,
        )
        async def act(name: Name) -> Any:
            known = _decoded(name)
            await do(known)
            return JSONResponse(_finite(service.status(known)))

    action("freeze", "Answer without adapting", lambda name: service.freeze(name, True))
    action("unfreeze", "Adapt again", lambda name: service.freeze(name, False))
    action("reset", "Back to the source model", service.reset)

    @app.post(
        "/v1/streams/{name}/rollback",
        summary="Back to a snapshot",
        response_model=StreamState,
        responses=_responses(404, 409),
        **common,
    )
    async def rollback(name: Name, where: Rollback) -> Any:
        """Also brings back a stream that was deleted; a frozen stream stays frozen."""
        known = _decoded(name)
        await service.rollback(known, where.snapshot)
        return JSONResponse(_finite(service.status(known)))

    @app.delete("/v1/streams/{name}", summary="Forget a stream", status_code=204, responses=_responses(404), **common)
    async def delete(name: Name) -> Response:
        """Snapshots that were taken keep it until they are replaced."""
        await service.drop(_decoded(name))
        return Response(status_code=204)


# -- the whole ------------------------------------------------------------------------------------------------------


def _add_whole(app: FastAPI, service: Service) -> None:
    common: dict[str, Any] = {"tags": ["service"], "openapi_extra": _SECURITY}

    @app.get("/v1/snapshots", summary="Snapshots", response_model=list[SnapshotState], responses=_responses(), **common)
    async def snapshots() -> Any:
        """The oldest first."""
        return JSONResponse(await service.listed_snapshots())

    @app.post(
        "/v1/snapshots",
        summary="Take a snapshot now",
        status_code=201,
        response_model=SnapshotState,
        responses=_responses(),
        **common,
    )
    async def snapshot() -> Any:
        return JSONResponse(await service.snapshot(), 201)

    @app.get(
        "/v1/alarms", summary="Alarms that are on", response_model=list[AlarmState], responses=_responses(), **common
    )
    async def alarms() -> Any:
        return JSONResponse(_finite([asdict(alarm) for alarm in service.watch.alarms()]))

    @app.get("/v1/info", summary="What is served", response_model=dict[str, Any], responses=_responses(), **common)
    async def info() -> Any:
        return JSONResponse(service.info())

    @app.get(
        "/metrics",
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **_responses()},
        **common,
    )
    async def metrics() -> Response:
        return Response(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz", tags=["service"], summary="Alive", response_model=Health, responses=_responses(guarded=False))
    async def healthz() -> Any:
        return JSONResponse({"status": "alive", "problems": []})

    @app.get(
        "/readyz",
        tags=["service"],
        summary="Ready for requests",
        response_model=Health,
        responses={**_responses(guarded=False), 503: {"model": Health, "description": "Not ready."}},
    )
    async def readyz() -> Any:
        """The model is loaded, the state is restored, and the last snapshot worked."""
        problems = service.problems()
        return JSONResponse(
            {"status": "not ready" if problems else "ready", "problems": problems}, 503 if problems else 200
        )


def _add_pages(app: FastAPI, service: Service) -> None:
    def add(address: str, file: str, kind: str) -> None:
        content = page.read(file)

        @app.get(address, include_in_schema=False)
        async def read() -> Response:
            return Response(content, media_type=kind, headers=page.HEADERS)

    for address, (file, kind) in page.FILES.items():
        add(address, file, kind)


def _add_document(app: FastAPI, needs_token: bool) -> None:
    """The OpenAPI document, with the token as the way to authenticate where there is one."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        content = plain()
        if needs_token:
            schemes = content.setdefault("components", {}).setdefault("securitySchemes", {})
            schemes["token"] = {"type": "http", "scheme": "bearer"}
        else:
            for verbs in content["paths"].values():
                for about in verbs.values():
                    about.pop("security", None)
        return content

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value
