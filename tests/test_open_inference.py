"""The Open Inference Protocol: a client written from its specification, against a real process."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import serving

from tidefast.streams import as_tensor

LEVELS = serving.pictures(48).reshape(6, 8, 32, 32, 3)
TYPES = {"BOOL": "?", "UINT8": "u1", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    content: dict[str, Any]
    tensors: dict[str, Any] = field(default_factory=dict)


class ProtocolClient:
    """What the specification says a client may send and must get; it knows nothing of the service but its address."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address, self.token = address, token

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> Reply:
        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.address}/{path}", body, given)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, got, content = answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            status, got, content = error.code, dict(error.headers), error.read()
        length = int(got.get("inference-header-content-length", len(content)))
        reply = Reply(status, got, json.loads(content[:length]))
        if status >= 400 and "error" in reply.content:
            assert list(reply.content) == ["error"]
            assert isinstance(reply.content["error"], str)
        self._unpack(reply, content[length:])
        return reply

    def _unpack(self, reply: Reply, rest: bytes) -> None:
        for output in reply.content["outputs"] if "model_name" in reply.content else ():
            assert {"name", "shape", "datatype"} <= output.keys()
            size = output.get("parameters", {}).get("binary_data_size")
            assert (size is None) == ("data" in output)
            if size is None:
                values = output["data"]
            else:
                part, rest = rest[:size], rest[size:]
                values = self._strings(part) if output["datatype"] == "BYTES" else None
                if values is None:
                    values = np.frombuffer(part, TYPES[output["datatype"]])
            if output["datatype"] == "BYTES":
                assert len(values) == int(np.prod(output["shape"]))
                reply.tensors[output["name"]] = list(values)
            else:
                reply.tensors[output["name"]] = np.asarray(values, TYPES[output["datatype"]]).reshape(output["shape"])
        assert not rest

    @staticmethod
    def _strings(part: bytes) -> list[str]:
        strings = []
        while part:
            (length,) = struct.unpack("<I", part[:4])
            strings.append(part[4 : 4 + length].decode())
            part = part[4 + length :]
        return strings

    def infer(
        self,
        model: str,
        tensor: np.ndarray,
        *,
        binary: bool = False,
        nested: bool = False,
        version: str = "",
        name: str = "images",
        **more: Any,
    ) -> Reply:
        datatype = {np.dtype("u1"): "UINT8", np.dtype("<f4"): "FP32", np.dtype("<f8"): "FP64"}[tensor.dtype]
        given: dict[str, Any] = {"name": name, "shape": list(tensor.shape), "datatype": datatype}
        path = f"v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
        if binary:
            given["parameters"] = {"binary_data_size": tensor.nbytes}
            head = json.dumps({"inputs": [given], **more}).encode()
            return self.ask(path, head + tensor.tobytes(), Inference_Header_Content_Length=str(len(head)))
        given["data"] = tensor.tolist() if nested else tensor.ravel().tolist()
        return self.ask(path, json.dumps({"inputs": [given], **more}).encode(), Content_Type="application/json")


MODEL = "camera-net"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    more = ("--max-wait", "0", "--model-name", MODEL, "--max-body", "2000000", "--max-streams", "20")
    with serving.serving(tmp_path_factory.mktemp("protocol") / "state", *more) as running:
        yield running


@pytest.fixture(scope="module")
def client(service):
    return ProtocolClient(service.address, serving.TOKEN)


def test_health_needs_no_token_and_says_what_the_specification_says(service):
    stranger = ProtocolClient(service.address, None)
    assert stranger.ask("v2/health/live").content == {"live": True}
    assert stranger.ask("v2/health/ready").content == {"live": True, "ready": True}
    about = stranger.ask("v2").content
    assert about.keys() == {"name", "version", "extensions"}
    assert (about["name"], about["extensions"]) == ("tidefast", ["binary_tensor_data"])


def test_the_metadata_declares_what_infer_takes_and_gives(client):
    about = client.ask(f"v2/models/{MODEL}").content
    assert about == client.ask(f"v2/models/{MODEL}/versions/{about['versions'][0]}").content
    assert about["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
    reply = client.infer(MODEL, LEVELS[0], parameters={"stream": "declared", "adapt": False})
    declared = {output["name"]: output for output in about["outputs"]}
    assert [output["name"] for output in reply.content["outputs"]] == list(declared)
    for output in reply.content["outputs"]:
        told = declared[output["name"]]
        assert output["datatype"] == told["datatype"]
        assert all(side in (-1, length) for side, length in zip(told["shape"], output["shape"], strict=True))
    assert client.ask(f"v2/models/{MODEL}/ready").content == {"name": MODEL, "ready": True}
    assert client.ask(f"v2/models/{MODEL}/versions/1/ready").content["ready"] is True


def test_answers_are_those_of_a_lone_adapter_however_they_are_asked(client):
    adapter = serving.lone()
    floats = as_tensor(LEVELS[1]).numpy()
    ways = [
        {"tensor": LEVELS[0]},
        {"tensor": floats, "nested": True},
        {"tensor": LEVELS[2], "binary": True, "version": "1"},
        {"tensor": as_tensor(LEVELS[3]).numpy(), "binary": True},
    ]
    for step, way in enumerate(ways, start=1):
        binary = {"binary_data_output": True} if step % 2 else {}
        asked = {"stream": "camera 1/door", "adapt": True, **binary}
        reply = client.infer(MODEL, **way, id=f"request {step}", parameters=asked)
        assert reply.status == 200, reply.content
        expected = adapter(as_tensor(LEVELS[step - 1]))
        assert serving.same_bits(torch.tensor(reply.tensors["logits"]), expected)
        assert np.allclose(reply.tensors["probabilities"], expected.softmax(1), atol=1e-6)
        assert reply.tensors["classes"].tolist() == expected.argmax(1).tolist()
        assert len(reply.tensors["labels"]) == 8
        about = reply.content
        assert (about["id"], about["model_name"], about["model_version"]) == (f"request {step}", MODEL, "1")
        told = about["parameters"]
        assert (told["stream"], told["step"], told["batch_size"], told["frozen"]) == ("camera 1/door", step, 8, False)
    reply = client.infer(MODEL, LEVELS[5], parameters={"stream": "camera 1/door", "adapt": False})
    assert serving.same_bits(torch.tensor(reply.tensors["logits"]), adapter.predict(as_tensor(LEVELS[5])))
    assert (reply.content["parameters"]["step"], reply.content["parameters"]["adapted"]) == (len(ways), False)


def test_only_the_outputs_that_are_asked_for_come_in_their_order(client):
    wanted = [{"name": "classes"}, {"name": "logits", "parameters": {"binary_data": True}}]
    reply = client.infer(MODEL, LEVELS[0], outputs=wanted, parameters={"stream": "few", "adapt": False})
    assert list(reply.tensors) == ["classes", "logits"]
    assert "data" in reply.content["outputs"][0]
    assert reply.tensors["logits"].argmax(1).tolist() == reply.tensors["classes"].tolist()
    assert "id" not in reply.content


GOOD = {"name": "images", "shape": [1, 32, 32, 3], "datatype": "UINT8", "data": [0] * 3072}
STREAM = {"stream": "x"}


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        (b"rubbish", 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b'{"inputs": NaN}', 400, "NaN is not a number"),
        (b'{"x": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        (b"[]", 422, "an object"),
        ({}, 422, 'called "images"'),
        ({"inputs": [GOOD, GOOD], "parameters": STREAM}, 422, "one tensor"),
        ({"inputs": [{**GOOD, "name": "pixels"}], "parameters": STREAM}, 422, 'called "images"'),
        ({"inputs": [GOOD]}, 422, '"parameters": {"stream": "camera-1"}'),
        ({"inputs": [GOOD], "parameters": {"stream": 5}}, 422, '"stream"'),
        ({"inputs": [GOOD], "parameters": {"stream": ""}}, 422, "1 to 200 printable"),
        ({"inputs": [GOOD], "parameters": {"stream": "a\nb"}}, 422, "1 to 200 printable"),
        ({"inputs": [GOOD], "parameters": {**STREAM, "adapt": "yes"}}, 422, '"adapt"'),
        ({"inputs": [GOOD], "parameters": ["stream"]}, 422, "parameters are an object"),
        ({"inputs": [GOOD], "parameters": STREAM, "id": 5}, 422, "id is a string"),
        ({"inputs": [GOOD], "parameters": STREAM, "outputs": [{"name": "logit"}]}, 422, "among logits, prob"),
        ({"inputs": [GOOD], "parameters": STREAM, "outputs": ["logits"]}, 422, "list of objects"),
        ({"inputs": [{**GOOD, "datatype": "FP64"}], "parameters": STREAM}, 422, '"FP32" or "UINT8"'),
        ({"inputs": [{**GOOD, "datatype": "FP32"}], "parameters": STREAM}, 422, "float32 [N, 3, H, W]"),
        ({"inputs": [{**GOOD, "shape": [1, 32, 32]}], "parameters": STREAM}, 422, "[N, H, W, 3]"),
        ({"inputs": [{**GOOD, "shape": "1"}], "parameters": STREAM}, 422, "whole numbers"),
        ({"inputs": [{**GOOD, "shape": [True, 32, 32, 3]}], "parameters": STREAM}, 422, "whole numbers"),
        ({"inputs": [{**GOOD, "shape": [2**70, 32, 32, 3]}], "parameters": STREAM}, 422, "data has the shape"),
        ({"inputs": [{**GOOD, "shape": [1, 2**40, 32, 3]}], "parameters": STREAM}, 413, "pixels are accepted"),
        ({"inputs": [{**GOOD, "data": [0] * 3071}], "parameters": STREAM}, 422, "shape [3071]"),
        ({"inputs": [{**GOOD, "data": [256] * 3072}], "parameters": STREAM}, 422, "0 to 255"),
        ({"inputs": [{**GOOD, "data": [0.5] * 3072}], "parameters": STREAM}, 422, "whole numbers only"),
        ({"inputs": [{**GOOD, "data": ["0"] * 3072}], "parameters": STREAM}, 422, "whole numbers only"),
        ({"inputs": [{**GOOD, "data": [[0], [0, 1]]}], "parameters": STREAM}, 422, "flat or nested"),
        ({"inputs": [{**GOOD, "data": None}], "parameters": STREAM}, 422, "has its data"),
        (
            {
                "inputs": [{**GOOD, "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [2] * 3072}],
                "parameters": STREAM,
            },
            422,
            "must lie in [0, 1]",
        ),
        (
            {"inputs": [{**GOOD, "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [1e300] * 3072}]},
            422,
            "must lie in [0, 1]",
        ),
        ({"inputs": [{**GOOD, "shape": [1, 16, 16, 3], "data": [0] * 768}], "parameters": STREAM}, 422, "32x32"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 3072}}], "parameters": STREAM}, 422, "not both"),
    ],
)
def test_bad_questions_are_refused_in_the_form_of_the_protocol(client, asked, status, told):
    reply = client.ask(f"v2/models/{MODEL}/infer", asked if isinstance(asked, bytes) else json.dumps(asked).encode())
    assert reply.status == status, reply.content
    assert told in reply.content["error"]


@pytest.mark.parametrize(
    ("length", "promised", "rest", "told"),
    [
        ("x", 3072, 3072, "number of bytes"),
        ("-1", 3072, 3072, "number of bytes"),
        ("999999", 3072, 3072, "but the body has"),
        (None, 3072, 3071, "3071 follow"),
        (None, 3071, 3072, "promises 3071"),
        (None, "3072", 3072, "but 3072 follow"),
    ],
)
def test_binary_tensors_that_do_not_add_up_are_refused(client, length, promised, rest, told):
    given = {"name": "images", "shape": [1, 32, 32, 3], "datatype": "UINT8"}
    head = json.dumps({"inputs": [{**given, "parameters": {"binary_data_size": promised}}], "parameters": STREAM})
    reply = client.ask(
        f"v2/models/{MODEL}/infer",
        head.encode() + bytes(rest),
        Inference_Header_Content_Length=length or str(len(head)),
    )
    assert (reply.status, told in reply.content["error"]) == (400, True), reply.content


def test_the_limits_and_the_token_are_those_of_our_own_api(service, client):
    stranger = ProtocolClient(service.address, None)
    for path in (f"v2/models/{MODEL}", f"v2/models/{MODEL}/ready"):
        assert stranger.ask(path).status == 401
    assert stranger.infer(MODEL, LEVELS[0], parameters=STREAM).status == 401
    assert client.ask("v2/models/other").status == 404
    assert client.ask(f"v2/models/{MODEL}/versions/2").status == 404
    assert client.infer("other", LEVELS[0], parameters=STREAM).status == 404
    assert client.ask("v2/nothing").content == {"error": "Not Found"}
    assert client.ask("v2/models/camera%2Fnet").status == 404
    many = np.zeros((65, 32, 32, 3), np.uint8)
    assert client.infer(MODEL, many, binary=True, parameters=STREAM).status == 413
    assert client.ask(f"v2/models/{MODEL}/infer", bytes(2_000_001)).status == 413
    with service.client() as own:
        before = own.get("/metrics").text
        assert 'tidefast_rejected_total{reason="unauthorized"}' in before
        assert "x" not in {stream["name"] for stream in own.get("/v1/streams").json()}
        # The stream that infer adapts is the stream of our own API.
        steps = client.infer(MODEL, LEVELS[0], parameters={"stream": "shared"}).content["parameters"]["step"]
        assert own.get("/v1/streams/shared").json()["step"] == steps == 1
        own.post("/v1/streams/shared/freeze").raise_for_status()
    assert client.infer(MODEL, LEVELS[0], parameters={"stream": "shared"}).content["parameters"]["frozen"] is True
    for index in range(30):
        reply = client.infer(MODEL, LEVELS[0][:1], parameters={"stream": f"more-{index}"})
    assert (reply.status, "delete some" in reply.content["error"]) == (409, True)
