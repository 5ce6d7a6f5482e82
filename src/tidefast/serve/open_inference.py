"""The Open Inference Protocol (KServe v2 over REST) beside our own addresses, for clients that speak it already."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

import tidefast
from tidefast.serve import tensors
from tidefast.serve.answer import Answer
from tidefast.serve.images import ImageArray
from tidefast.serve.interface import StreamService
from tidefast.serve.limits import ByteAccount
from tidefast.serve.plain import finite
from tidefast.serve.refused import RefusedError
from tidefast.serve.routes import too_late
from tidefast.serve.schemas import SECURITY, ProtocolError, require_name, responses
from tidefast.serve.uploads import read_body

VERSION = "1"
"""Of every model: it adapts, and is not replaced."""
HEADER = "Inference-Header-Content-Length"
"""Bytes of JSON before the tensors, where those are binary."""
_JSON = 8 * 2**20  # bytes of JSON that are read: while they are, nothing else happens
_UNFOLDED = 32  # bytes that a byte of JSON may become as Python's objects


class ServerMetadata(BaseModel):
    """What serves."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor that is taken or given; -1 stands for any length."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What is served. Images come as FP32 [N, 3, H, W] in [0, 1], or as UINT8 [N, H, W, 3] by the same name."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReadiness(BaseModel):
    """Whether the model answers."""

    name: str
    ready: bool


class ServerReadiness(BaseModel):
    """Whether the server answers; the protocol's text and its schema call it by two names."""

    live: bool
    ready: bool


class Liveness(BaseModel):
    """Whether the process lives."""

    live: bool


class OutputTensor(BaseModel):
    """One tensor of an answer."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferenceResponse(BaseModel):
    """The answer to images; the parameters are those of our own: stream, step, batch, frozen, adapted, lost."""

    model_config = ConfigDict(protected_namespaces=())
    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any]
    outputs: list[OutputTensor]


INFERENCE = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["inputs", "parameters"]},
                "example": {
                    "parameters": {"stream": "camera-17", "adapt": True},
                    "inputs": [{"name": "images", "shape": [1, 2, 2, 3], "datatype": "UINT8", "data": [0] * 12}],
                    "outputs": [{"name": "classes"}],
                },
            }
        },
    }
}
"""The body of a question; it is read by hand, within bounds."""


def add_open_inference(app: FastAPI, service: StreamService) -> None:
    """The protocol's addresses; the model is called as `--model-name` says."""
    _add_health(app, service)
    _add_model(app, service)
    _add_inference(app, service)


def _responses(*statuses: int, guarded: bool = True) -> dict[int | str, dict[str, Any]]:
    return responses(*statuses, guarded=guarded, form=ProtocolError)


def _require_model(service: StreamService, model: str, version: str) -> None:
    name = service.settings.public_name
    if unquote(model) != name or version != VERSION:
        asked = f"{unquote(model)[:80]!r}" + ("" if version == VERSION else f" version {version[:20]!r}")
        raise RefusedError("unknown", f"there is no model {asked}: it is {name!r}, version {VERSION}")


def _add_health(app: FastAPI, service: StreamService) -> None:
    common: dict[str, Any] = {"tags": ["open inference"]}

    @app.get("/v2", summary="The server", response_model=ServerMetadata, responses=_responses(guarded=False), **common)
    async def server() -> Any:
        about = {"name": "tidefast", "version": tidefast.__version__, "extensions": ["binary_tensor_data"]}
        return JSONResponse(about)

    @app.get("/v2/health/live", summary="Alive", response_model=Liveness, responses=_responses(guarded=False), **common)
    async def live() -> Any:
        return JSONResponse({"live": True})

    @app.get(
        "/v2/health/ready",
        summary="Ready for requests",
        response_model=ServerReadiness,
        responses={**_responses(guarded=False), 503: {"model": ServerReadiness, "description": "Not ready."}},
        **common,
    )
    async def ready() -> Any:
        """As /readyz says."""
        well = not await service.problems()
        return JSONResponse({"live": True, "ready": well}, 200 if well else 503)


def _add_model(app: FastAPI, service: StreamService) -> None:
    common: dict[str, Any] = {"tags": ["open inference"], "openapi_extra": SECURITY}

    async def about(model: str, version: str) -> JSONResponse:
        _require_model(service, model, version)
        known = await service.info()
        return JSONResponse(
            {
                "name": service.settings.public_name,
                "versions": [VERSION],
                "platform": "pytorch",
                "inputs": [tensors.input_metadata(known["size"])],
                "outputs": tensors.output_metadata(known["classes"], known["labels"]),
            }
        )

    async def readiness(model: str, version: str) -> JSONResponse:
        _require_model(service, model, version)
        well = not await service.problems()
        return JSONResponse({"name": service.settings.public_name, "ready": well}, 200 if well else 503)

    for suffix in ("", "/versions/{version}"):
        address = "/v2/models/{model}" + suffix

        @app.get(address, summary="The model", response_model=ModelMetadata, responses=_responses(404), **common)
        async def metadata(model: str, version: str = VERSION) -> Any:
            return await about(model, version)

        @app.get(
            f"{address}/ready",
            summary="The model is ready",
            response_model=ModelReadiness,
            responses={**_responses(404), 503: {"model": ModelReadiness, "description": "Not ready."}},
            **common,
        )
        async def ready(model: str, version: str = VERSION) -> Any:
            return await readiness(model, version)


def _add_inference(app: FastAPI, service: StreamService) -> None:
    async def answered(request: Request, model: str, version: str) -> Response:
        _require_model(service, model, version)
        with service.bodies.account() as account:
            try:
                async with asyncio.timeout(service.settings.timeout):
                    asked, pixels = await _read(request, service, account)
            except TimeoutError:
                return too_late(service, None, request.url.path)
            parameters = asked.parameters
            stream, adapt = parameters.get("stream"), parameters.get("adapt", True)
            if not isinstance(stream, str) or not isinstance(adapt, bool):
                raise RefusedError(
                    "unfit",
                    'a request says whose images these are, "parameters": {"stream": "camera-1"}, and may say '
                    '"adapt": false to change nothing',
                )
            wanted = tensors.wanted_outputs(asked.outputs, parameters, service.labels)
            answer = await service.answer(require_name(stream), pixels, adapt=adapt)
        return _response(service, asked, stream, answer, wanted)

    for suffix in ("", "/versions/{version}"):

        @app.post(
            "/v2/models/{model}" + suffix + "/infer",
            summary="Predict, and adapt unless told otherwise",
            response_model=InferenceResponse,
            responses=_responses(404, 408, 409, 413, 504),
            tags=["open inference"],
            openapi_extra={**INFERENCE, **SECURITY},
        )
        async def infer(request: Request, model: str, version: str = VERSION) -> Any:
            """The stream is a parameter of the request; tensors may be JSON, or binary behind it."""
            return await answered(request, model, version)


async def _read(request: Request, service: StreamService, account: ByteAccount) -> tuple[tensors.Question, ImageArray]:
    """What is asked, and the images, within bounds."""
    limits = service.settings
    most = min(_JSON, limits.max_body, limits.body_budget // _UNFOLDED)
    given = request.headers.get(HEADER)
    if given is not None and not given.isdecimal():
        raise RefusedError("malformed", f"{HEADER} must be a number of bytes, got {given[:40]!r}")
    body = await read_body(request, most if given is None else limits.max_body, account)
    length = len(body) if given is None else int(given)
    if length > len(body):
        raise RefusedError("malformed", f"{HEADER} is {length}, but the body has {len(body)} bytes")
    if length > most:
        raise RefusedError("too_large", f"JSON has at most {most} bytes here, got {length}: send tensors as binary")
    with service.bodies.account() as unfolded:
        unfolded.charge(_UNFOLDED * length)
        asked, pixels = await service.decode(
            functools.partial(tensors.read_question, body, length, limits.max_pixels), len(body)
        )
    if given is None:
        account.charge(pixels.nbytes)  # binary ones are where they were
    return asked, pixels


def _response(
    service: StreamService, asked: tensors.Question, stream: str, answer: Answer, wanted: dict[str, bool]
) -> Response:
    """The tensors that were asked for, as JSON, or behind it those that are to be binary."""
    about: dict[str, Any] = {"model_name": service.settings.public_name, "model_version": VERSION}
    if asked.id is not None:
        about["id"] = asked.id
    about["parameters"] = {
        "stream": stream,
        "step": answer.step,
        "batch_size": answer.size,
        "batch_offset": answer.offset,
        "frozen": answer.frozen,
        "adapted": answer.adapted,
        "lost": answer.lost,
    }
    outputs, parts = [], []
    for name, binary in wanted.items():
        tensor = tensors.output(name, answer, service.labels)
        if binary:
            parts.append(tensor.binary())
            tensor.about["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            tensor.about["data"] = finite(tensor.plain())
        outputs.append(tensor.about)
    about["outputs"] = outputs
    if not parts:
        return JSONResponse(about)
    header = json.dumps(about, allow_nan=False, separators=(",", ":")).encode()
    return Response(
        b"".join([header, *parts]), media_type="application/octet-stream", headers={HEADER: str(len(header))}
    )
