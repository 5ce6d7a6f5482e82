"""The service over HTTP: its routes, its errors and its document, put together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import FastAPI
from fastapi.responses import JSONResponse

import tidefast
from tidefast.serve.access import AccessControl, App
from tidefast.serve.interface import StreamService
from tidefast.serve.manual import add_manual
from tidefast.serve.open_inference import add_open_inference
from tidefast.serve.problems import add_errors, problem
from tidefast.serve.refused import RefusedError
from tidefast.serve.routes import add_routes
from tidefast.serve.schemas import DESCRIPTION, STATUS


def make_app(service: StreamService) -> FastAPI:
    """The application that serves `service`; it starts with the application and stops with it."""

    telemetry = None
    if service.settings.otel:
        from tidefast.serve.telemetry import Telemetry  # an extra of its own

        telemetry = Telemetry(service)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.nullcontext() if telemetry is None else telemetry.mirrored():
            await service.start()
            try:
                yield
            finally:
                await service.stop()  # first: a receiver that is away must not keep the last snapshot waiting

    app = FastAPI(
        title="tidefast",
        version=tidefast.__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own loads scripts from elsewhere, beside the token that the live page keeps
        redoc_url=None,
        separate_input_output_schemas=False,
    )

    def refused(error: RefusedError, path: str, name: str | None = None, wait: float = 0.0) -> JSONResponse:
        service.rejected(name, error.reason)
        return problem(STATUS[error.reason], error.reason, str(error), wait, path=path)

    app.add_middleware(
        cast(Any, AccessControl),
        settings=service.settings,
        refuse=lambda error, path, wait: cast(App, refused(error, path, wait=wait)),
    )
    if telemetry is not None:
        app.add_middleware(cast(Any, telemetry.around_requests))
    add_errors(app, refused)
    add_routes(app, service)
    add_open_inference(app, service)
    _add_document(app, service.settings.token is not None)
    add_manual(app)
    return app


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
