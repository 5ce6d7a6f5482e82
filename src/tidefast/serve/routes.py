"""The addresses of the service, and what each of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from tidefast.serve import page
from tidefast.serve.answer import Answer
from tidefast.serve.interface import StreamService
from tidefast.serve.plain import finite
from tidefast.serve.problems import problem
from tidefast.serve.refused import RefusedError
from tidefast.serve.schemas import (
    BODY,
    EXAMPLE,
    ROLLBACK,
    SECURITY,
    AlarmState,
    FeedbackState,
    Health,
    Name,
    Predictions,
    Rollback,
    SnapshotState,
    StreamState,
    decoded_name,
    responses,
)
from tidefast.serve.uploads import read_images, read_small


def add_routes(app: FastAPI, service: StreamService) -> None:
    """All addresses: images, streams, the service as a whole, and the live page."""
    _add_images(app, service)
    _add_streams(app, service)
    _add_whole(app, service)
    _add_pages(app)


def _add_images(app: FastAPI, service: StreamService) -> None:
    limits = service.settings

    @app.post(
        "/v1/streams/{name}/feedback",
        summary="Labels for some images",
        response_model=FeedbackState,
        responses=responses(404, 408, 413, 415, 504),
        tags=["images"],
        openapi_extra={**BODY, **SECURITY},
    )
    async def feedback(
        request: Request,
        name: Name,
        label: Annotated[list[Annotated[int, Query(ge=0, le=2**31)]], Query(description="A class for each image")],
    ) -> Any:
        """Labels decide whether the adapted network answers, with a policy that takes them (`guard:alpha=0.05`)."""
        stream = decoded_name(name)
        await service.require_labels_wanted(stream)
        with service.bodies.account() as account:
            try:
                async with asyncio.timeout(limits.timeout):
                    pixels = await read_images(request, service, account)
            except TimeoutError:
                return too_late(service, stream, request.url.path)
            return JSONResponse(finite((await service.feedback(stream, pixels, label)).as_dict()))

    async def answered(request: Request, name: str, logits: bool, adapt: bool) -> JSONResponse:
        stream = decoded_name(name)
        with service.bodies.account() as account:
            try:
                async with asyncio.timeout(limits.timeout):
                    pixels = await read_images(request, service, account)
            except TimeoutError:
                return too_late(service, stream, request.url.path)
            answer = await service.answer(stream, pixels, adapt=adapt)
        return JSONResponse(_plain(stream, answer, service.labels, logits))

    statuses = (404, 408, 409, 413, 415, 504)
    common: dict[str, Any] = {
        "tags": ["images"],
        "openapi_extra": {**BODY, **SECURITY},
        "responses": {
            200: {"model": Predictions, "content": {"application/json": {"example": EXAMPLE}}},
            **responses(*statuses),
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


def too_late(service: StreamService, stream: str | None, path: str) -> JSONResponse:
    """The answer to a body that did not come in time."""
    service.rejected(stream, "timeout")
    return problem(408, "timeout", f"the request did not come within {service.settings.timeout:g} s", path=path)


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
    if answer.lost:
        plain["lost"] = answer.lost
    return {**plain, "logits": answer.logits.tolist()} if logits else plain


def _add_streams(app: FastAPI, service: StreamService) -> None:
    common: dict[str, Any] = {"tags": ["streams"], "openapi_extra": SECURITY}

    @app.get(
        "/v1/streams",
        summary="Streams at a glance",
        response_model=list[StreamState],
        responses=responses(),
        **common,
    )
    async def streams(
        prefix: Annotated[str, Query(max_length=200, description="How the names begin")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[str, Query(max_length=200, description="The last name of the page before")] = "",
        order: Annotated[Literal["name", "attention"], Query()] = "name",
    ) -> Any:
        """By name, or those first that have alarms or were used lately; at most `limit` that come after `after`."""
        return JSONResponse(finite(await service.listed(prefix, order, after, limit)))

    @app.get("/v1/streams/{name}", summary="One stream", response_model=StreamState, responses=responses(404), **common)
    async def stream(name: Name) -> Any:
        return JSONResponse(finite(await service.status(decoded_name(name))))

    @app.get(
        "/v1/streams/{name}/history",
        summary="Its latest steps",
        response_model=list[dict[str, Any]],
        responses=responses(404),
        **common,
    )
    async def history(name: Name, since: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Any:
        """What is remembered of the steps after `since`, the oldest first; gone after a restart."""
        return JSONResponse(finite(await service.history(decoded_name(name), since)))

    def action(verb: str, summary: str, do: Callable[[str], Awaitable[None]]) -> None:
        @app.post(
            f"/v1/streams/{{name}}/{verb}",
            summary=summary,
            response_model=StreamState,
            responses=responses(404),
            operation_id=verb,
            **common,
        )
        async def act(name: Name) -> Any:
            known = decoded_name(name)
            await do(known)
            return JSONResponse(finite(await service.status(known)))

    action("freeze", "Answer without adapting", lambda name: service.freeze(name, True))
    action("unfreeze", "Adapt again", lambda name: service.freeze(name, False))
    action("reset", "Back to the source model", service.reset)

    @app.post(
        "/v1/streams/{name}/rollback",
        summary="Back to a snapshot",
        response_model=StreamState,
        responses=responses(404, 408, 409, 413),
        tags=common["tags"],
        openapi_extra={**ROLLBACK, **SECURITY},
    )
    async def rollback(request: Request, name: Name) -> Any:
        """Also brings back a stream that was deleted; a frozen stream stays frozen."""
        known = decoded_name(name)
        try:
            body = await read_small(request, _SMALL_BODY, service.settings.timeout)
        except TimeoutError:
            return too_late(service, known, request.url.path)
        try:
            where = Rollback.model_validate_json(body)
        except ValidationError as error:
            raise RefusedError("unfit", "; ".join(fault["msg"] for fault in error.errors()[:3])) from None
        await service.rollback(known, where.snapshot)
        return JSONResponse(finite(await service.status(known)))

    @app.delete("/v1/streams/{name}", summary="Forget a stream", status_code=204, responses=responses(404), **common)
    async def delete(name: Name) -> Response:
        """Snapshots that were taken keep it until they are replaced."""
        await service.drop(decoded_name(name))
        return Response(status_code=204)


def _add_whole(app: FastAPI, service: StreamService) -> None:
    common: dict[str, Any] = {"tags": ["service"], "openapi_extra": SECURITY}

    @app.get("/v1/snapshots", summary="Snapshots", response_model=list[SnapshotState], responses=responses(), **common)
    async def snapshots() -> Any:
        """The oldest first."""
        return JSONResponse(await service.listed_snapshots())

    @app.post(
        "/v1/snapshots",
        summary="Take a snapshot now",
        status_code=201,
        response_model=SnapshotState,
        responses=responses(),
        **common,
    )
    async def snapshot() -> Any:
        return JSONResponse(await service.snapshot(), 201)

    @app.get(
        "/v1/alarms", summary="Alarms that are on", response_model=list[AlarmState], responses=responses(), **common
    )
    async def alarms() -> Any:
        return JSONResponse(finite([asdict(alarm) for alarm in await service.alarms()]))

    @app.get("/v1/info", summary="What is served", response_model=dict[str, Any], responses=responses(), **common)
    async def info() -> Any:
        return JSONResponse(await service.info())

    @app.get(
        "/metrics",
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **responses()},
        **common,
    )
    async def metrics() -> Response:
        return Response(await service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz", tags=["service"], summary="Alive", response_model=Health, responses=responses(guarded=False))
    async def healthz() -> Any:
        return JSONResponse({"status": "alive", "problems": []})

    @app.get(
        "/readyz",
        tags=["service"],
        summary="Ready for requests",
        response_model=Health,
        responses={**responses(guarded=False), 503: {"model": Health, "description": "Not ready."}},
    )
    async def readyz() -> Any:
        """The model is loaded, the state is restored, and the last snapshot worked."""
        problems = await service.problems()
        return JSONResponse(
            {"status": "not ready" if problems else "ready", "problems": problems}, 503 if problems else 200
        )


def _add_pages(app: FastAPI) -> None:
    def add(address: str, file: str, kind: str) -> None:
        content = page.read(file)

        @app.get(address, include_in_schema=False)
        async def read() -> Response:
            return Response(content, media_type=kind, headers=page.HEADERS)

    for address, (file, kind) in page.FILES.items():
        add(address, file, kind)


_SMALL_BODY = 4096  # bytes that are enough to name a snapshot
