"""What requests and answers look like, as the OpenAPI document tells it."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from tidefast.serve import images
from tidefast.serve.refused import RefusedError

STATUS = {
    "busy": 429,
    "damaged": 409,
    "failed": 500,
    "foreign": 403,
    "malformed": 400,
    "memory": 503,
    "moving": 503,
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


class Problem(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"reason": "unknown", "detail": "there is no stream 'camera-17'"}}
    )
    reason: str = Field(description="One of: " + ", ".join(sorted(STATUS)))
    detail: str


class ProtocolError(BaseModel):
    """The same in the form of the Open Inference Protocol."""

    error: str


class Prediction(BaseModel):
    """Of one image."""

    model_config = ConfigDict(populate_by_name=True)
    class_: int = Field(alias="class")
    label: str | None = Field(default=None, description="Left out where the classes have no names.")
    probability: float


class BatchPosition(BaseModel):
    """The batch that a request was part of."""

    size: int
    offset: int = Field(description="How many of its images came before those of the request.")


class Predictions(BaseModel):
    """The answer to images."""

    stream: str
    step: int = Field(description="Adapting calls of the stream so far, this one included.")
    batch: BatchPosition
    predictions: list[Prediction]
    logits: list[list[float]] | None = Field(default=None, description="With logits=true.")
    frozen: bool
    adapted: bool = Field(description="Whether images of this step changed the model.")
    lost: int = Field(default=0, description="Steps that the stream lost just before, with a damaged or missing file.")


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
    frozen_by: str | None = Field(default=None, description="The alarm that froze it, if it was one.")
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


class FeedbackState(BaseModel):
    """What labels said, and who answers from now on."""

    labels: int
    better: int = Field(description="For which only the adapted network is right.")
    worse: int = Field(description="For which only the network that does not adapt is; all others tell nothing.")
    evidence: float = Field(description="For whoever does not answer; 1 at the beginning.")
    needed: float = Field(description="The evidence at which that changes.")
    serves: Literal["adapted", "reference"]
    changed: bool


class Health(BaseModel):
    """Whether all is well."""

    status: str
    problems: list[str] = []


DESCRIPTION = """Classifiers that adapt to their own unlabelled, drifting streams.

A stream begins with the first images sent to it. Requests of one stream that come close together make one step; each
answer says at which step, in a batch of which size and from which offset on, so that it can be reproduced. Names of
streams have 1 to 200 printable characters; in an address they are percent-encoded, slashes too.
"""

BODY = {
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
ROLLBACK = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": Rollback.model_json_schema()}}}
}
"""The body of a rollback; it is read by hand, within bounds."""
SECURITY: dict[str, Any] = {"security": [{"token": []}]}
EXAMPLE = {
    "stream": "camera-17",
    "step": 42,
    "batch": {"size": 16, "offset": 4},
    "predictions": [{"class": 5, "label": "dog", "probability": 0.93}],
    "frozen": False,
    "adapted": True,
}
_MEANINGS = {
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
    503: "The service is shutting down, its disk is full or cannot be read, or its memory is full; see Retry-After.",
    504: "There was no answer in time.",
}
_ALWAYS = (400, 401, 403, 405, 422, 429, 500, 503)


def responses(*statuses: int, guarded: bool = True, form: type[BaseModel] = Problem) -> dict[int | str, dict[str, Any]]:
    """What an address answers when it refuses; `guarded` ones ask for the token."""
    chosen = sorted({*statuses, *(_ALWAYS if guarded else (405, 500))})
    return {status: {"model": form, "description": _MEANINGS[status]} for status in chosen}


Name = Annotated[
    str,
    Path(
        description="The stream, percent-encoded",
        examples=["camera-17"],
        json_schema_extra={"minLength": 1, "maxLength": 200},  # of the name itself, which is checked once decoded
    ),
]


def decoded_name(encoded: str) -> str:
    """The name of a stream, from its percent-encoded form."""
    try:
        name = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise RefusedError("unfit", "the name of a stream must be percent-encoded UTF-8") from None
    return require_name(name)


def require_name(name: str) -> str:
    """The name of a stream, if it can be one."""
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise RefusedError("unfit", f"the name of a stream has 1 to 200 printable characters, got {len(name)}")
    return name


def decoded_name_or_none(encoded: str | None) -> str | None:
    """The same, where a name that cannot be is none."""
    with contextlib.suppress(RefusedError):
        return None if encoded is None else decoded_name(encoded)
    return None
