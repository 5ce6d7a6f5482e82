"""Tensors as the Open Inference Protocol writes them: in JSON, flat or nested, or as bytes behind it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tidefast.serve import images
from tidefast.serve.answer import Answer
from tidefast.serve.refused import RefusedError

INPUT = "images"
_KINDS: dict[str, npt.DTypeLike] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype(np.uint8)}


@dataclass(frozen=True)
class Question:
    """A request for inference, without its images."""

    id: str | None
    parameters: dict[str, Any]
    outputs: list[dict[str, Any]] | None


@dataclass
class NamedTensor:
    """One output: what the protocol says about it, and its values."""

    about: dict[str, Any]
    values: npt.NDArray[Any] | list[str]

    def plain(self) -> list[Any]:
        """For JSON, row by row in one list."""
        return self.values if isinstance(self.values, list) else list(self.values.ravel().tolist())

    def binary(self) -> bytes:
        """Little-endian, without gaps; strings with their lengths before them."""
        if not isinstance(self.values, list):
            return self.values.tobytes()
        encoded = [text.encode() for text in self.values]
        return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


# -- what is asked ------------------------------------------------------------------------------------------------


def read_question(body: bytes, length: int, max_pixels: int) -> tuple[Question, images.ImageArray]:
    """What a body asks, whose first `length` bytes are JSON, and its images.

    >>> body = b'{"inputs": [{"name": "images", "shape": [1, 1, 2, 3], "datatype": "UINT8", "data": [0,0,0,9,9,9]}]}'
    >>> read_question(body, len(body), max_pixels=100)[1].tolist()
    [[[[0, 0, 0], [9, 9, 9]]]]
    """
    try:
        asked = json.loads(body[:length], parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RefusedError("malformed", f"the body is not JSON: {' '.join(str(error).split())[:200]}") from None
    _require(isinstance(asked, dict), "the body is an object with inputs and parameters")
    question = Question(asked.get("id"), asked.get("parameters", {}), asked.get("outputs"))
    _require(question.id is None or isinstance(question.id, str), "id is a string")
    _require(isinstance(question.parameters, dict), "parameters are an object")
    outputs = question.outputs
    _require(
        outputs is None or (isinstance(outputs, list) and all(isinstance(wanted, dict) for wanted in outputs)),
        "outputs are a list of objects with a name each",
    )
    inputs = asked.get("inputs")
    _require(
        isinstance(inputs, list)
        and len(inputs) == 1
        and isinstance(inputs[0], dict)
        and inputs[0].get("name") == INPUT,
        f'inputs are a list of one tensor, called "{INPUT}"',
    )
    return question, _images(inputs[0], memoryview(body)[length:], max_pixels)


def _images(given: dict[str, Any], rest: memoryview, max_pixels: int) -> images.ImageArray:
    datatype, shape = given.get("datatype"), given.get("shape", [])
    _require(
        isinstance(datatype, str) and datatype in _KINDS, f'datatype is "FP32" or "UINT8", got {str(datatype)[:40]!r}'
    )
    _require(
        isinstance(shape, list) and all(isinstance(side, int) and not isinstance(side, bool) for side in shape),
        "shape is a list of whole numbers",
    )
    kind = np.dtype(_KINDS[str(datatype)])
    images.require_shape(kind, tuple(shape), max_pixels)
    parameters = given.get("parameters", {})
    promised = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if promised is not None:
        _require("data" not in given, "a tensor has data or a binary_data_size, not both")
        size = math.prod(shape) * kind.itemsize
        if promised != len(rest) or size != len(rest):
            raise RefusedError(
                "malformed",
                f"{datatype} {shape} takes {size} bytes and binary_data_size promises {str(promised)[:40]}, but "
                f"{len(rest)} follow the JSON",
            )
        pixels: images.ImageArray = np.frombuffer(rest, kind).reshape(shape)
    else:
        _require(len(rest) == 0, "bytes follow the JSON, but the tensor has no binary_data_size")
        pixels = _from_json(given.get("data"), kind, tuple(shape), str(datatype))
    if datatype == "FP32":
        images.require_range(pixels)
    return pixels


def _from_json(data: Any, kind: np.dtype[Any], shape: tuple[int, ...], datatype: str) -> images.ImageArray:
    """Numbers in a list, or in lists of lists that have the shape."""
    _require(isinstance(data, list), "a tensor has its data, a list of numbers")
    try:
        numbers = np.asarray(data)
    except (ValueError, OverflowError):
        raise RefusedError("unfit", "data is a list of numbers, flat or nested as the shape says") from None
    allowed = "i" if datatype == "UINT8" else "if"
    _require(
        numbers.dtype.kind in allowed, f"data of {datatype} holds {'whole ' if allowed == 'i' else ''}numbers only"
    )
    if numbers.shape not in (shape, (math.prod(shape),)):
        raise RefusedError("unfit", f"shape is {list(shape)}, but data has the shape {list(numbers.shape)[:8]}")
    if datatype == "UINT8" and not (numbers.min() >= 0 and numbers.max() <= 255):
        raise RefusedError("unfit", "data of UINT8 lies in 0 to 255")
    if datatype == "FP32":
        images.require_range(numbers)  # before what is too large for 32 bits becomes infinite
    pixels: images.ImageArray = numbers.astype(kind).reshape(shape)
    return pixels


def wanted_outputs(
    outputs: list[dict[str, Any]] | None, parameters: dict[str, Any], labels: Sequence[str] | None
) -> dict[str, bool]:
    """By name of the wanted outputs, whether they are to be binary."""
    there = [about["name"] for about in output_metadata(None, labels)]
    by_default = parameters.get("binary_data_output", False)
    _require(isinstance(by_default, bool), "binary_data_output is true or false")
    if outputs is None:
        return dict.fromkeys(there, by_default)
    wanted = {}
    for output in outputs:
        name, own = output.get("name"), output.get("parameters", {})
        _require(name in there, f"outputs are among {', '.join(there)}, got {str(name)[:40]!r}")
        binary = own.get("binary_data", by_default) if isinstance(own, dict) else None
        _require(isinstance(binary, bool), "binary_data is true or false")
        wanted[str(name)] = bool(binary)
    return wanted


# -- what is told -------------------------------------------------------------------------------------------------


def input_metadata(size: Sequence[int] | None) -> dict[str, Any]:
    """Of the images; their size is not known before the first."""
    return {"name": INPUT, "datatype": "FP32", "shape": [-1, 3, *(size or (-1, -1))]}


def output_metadata(classes: int | None, labels: Sequence[str] | None) -> list[dict[str, Any]]:
    """Of everything that may be asked for."""
    wide = [-1, classes or -1]
    outputs = [
        {"name": "logits", "datatype": "FP32", "shape": wide},
        {"name": "probabilities", "datatype": "FP32", "shape": wide},
        {"name": "classes", "datatype": "INT64", "shape": [-1]},
    ]
    return outputs + ([] if labels is None else [{"name": "labels", "datatype": "BYTES", "shape": [-1]}])


def output(name: str, answer: Answer, labels: Sequence[str] | None) -> NamedTensor:
    """One tensor of an answer."""
    if name == "labels":
        assert labels is not None
        strings = [labels[index] for index in answer.classes]
        return NamedTensor({"name": name, "datatype": "BYTES", "shape": [len(strings)]}, strings)
    if name == "classes":
        values = np.asarray(answer.classes, "<i8")
        return NamedTensor({"name": name, "datatype": "INT64", "shape": list(values.shape)}, values)
    rows = answer.logits if name == "logits" else answer.logits.softmax(1)
    wide = rows.numpy().astype("<f4")
    return NamedTensor({"name": name, "datatype": "FP32", "shape": list(wide.shape)}, wide)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise RefusedError("unfit", what)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")
