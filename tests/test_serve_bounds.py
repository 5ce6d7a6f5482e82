"""Bounds that bound: connections, heads, bodies, streams and the log of a service under attack."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import httpx
import serving

from test_serve import LEVELS, NPY, npy, running, send
from tidefast.serve import connections, images
from tidefast.serve.repeated import RepeatedLines

TOKEN = serving.TOKEN.encode()


# -- connections ----------------------------------------------------------------------------------------------------


def few_files(most: int):
    """For a process that may open no more than that."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_files(pid: int) -> int:
    """How many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def opened(port: int, count: int) -> list[socket.socket]:
    made = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=10)
        made.append(one)
    return made


@pytest.mark.slow
def test_idle_connections_neither_exhaust_the_service_nor_fill_its_log(tmp_path):
    with (
        serving.serving(tmp_path / "state", "--max-wait", "0", prepare=few_files(300)) as service,
        service.client() as http,
    ):
        assert "it takes 150 connections at a time" in service.log.read_text()
        assert http.get("/healthz").status_code == 200
        idle = opened(service.port, 400)
        late = socket.create_connection(("127.0.0.1", service.port), timeout=10)
        late.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert late.recv(100).startswith(b"HTTP/1.1 503")
        assert open_files(service.process.pid) < 300
        deadline = time.monotonic() + 3 * connections.HEAD
        while True:  # heads that do not come give their places back
            assert time.monotonic() < deadline
            with contextlib.suppress(httpx.TransportError):  # refused before it has asked
                if http.get("/healthz").status_code == 200:
                    break
            time.sleep(0.5)
        assert http.post("/v1/snapshots").status_code == 201
        log = service.log.read_text()
        assert "Traceback" not in log
        assert len(log) < 20_000
        for one in (*idle, late):
            one.close()


@pytest.mark.slow
def test_a_head_that_drips_is_ended(tmp_path):
    with serving.serving(tmp_path / "state") as service:
        dripping = socket.create_connection(("127.0.0.1", service.port), timeout=10)
        started = time.monotonic()
        dripping.sendall(b"GET /healthz HTTP/1.1\r\n")
        dripping.settimeout(0.5)
        said = b""
        while time.monotonic() - started < 2 * connections.HEAD + 5:
            try:
                dripping.sendall(b"X-More: 1\r\n")
                part = dripping.recv(1000)
                said += part
                if not part:
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection is still there")
        dripping.close()
        assert said.startswith(b"HTTP/1.1 408")
        assert connections.HEAD - 1 < time.monotonic() - started < connections.HEAD + 5


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_given_up(tmp_path):
    with serving.serving(tmp_path / "state", "--timeout", "2", "--max-wait", "0") as service, service.client() as http:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", service.port))
        ask = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n" % TOKEN
        deaf.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                deaf.sendall(ask * 50)
            pytest.fail("everything was taken: the answers lie somewhere")
        before = open_files(service.process.pid)
        deadline = time.monotonic() + 20
        while open_files(service.process.pid) >= before:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert http.get("/healthz").status_code == 200
        deaf.close()


def test_a_line_of_the_log_is_bounded_and_counted():
    now = [0.0]
    lines = RepeatedLines(most=3, seconds=60.0, clock=lambda: now[0])

    def line(text: str, level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("x", level, "", 0, text, (), None)

    assert sum(lines.filter(line("a")) for _ in range(100)) == 3
    assert lines.filter(line("b"))
    assert all(lines.filter(line("a", logging.INFO)) for _ in range(100))
    now[0] = 70.0
    last = line("a")
    assert lines.filter(last)
    assert last.getMessage() == "a (97 more of these in the last 70 s)"


# -- bodies ---------------------------------------------------------------------------------------------------------


def memory(pid: int, what: str) -> int:
    """Of a process, in MiB."""
    with open(f"/proc/{pid}/status") as file:
        (line,) = (line for line in file if line.startswith(what))
    return int(line.split()[1]) // 1024


@pytest.mark.slow
def test_bodies_in_flight_are_bounded_together(tmp_path):
    options = ("--body-budget", str(80 * 2**20), "--max-body", str(64 * 2**20), "--timeout", "20")
    with serving.serving(tmp_path / "state", *options) as service, service.client() as http:
        before = memory(service.process.pid, "VmRSS")
        body = bytes(32 * 2**20)

        def held(_: int) -> bytes:
            """All of a body but its last byte, and then what is said about it."""
            with socket.create_connection(("127.0.0.1", service.port), timeout=30) as one:
                one.sendall(serving.head("POST", serving.path_of("x"), len(body) + 1))
                try:
                    one.sendall(body)
                    sent.wait(15)
                    one.sendall(b"x")
                except OSError:
                    pass
                return one.recv(2000)

        sent = threading.Event()
        with ThreadPoolExecutor(12) as pool:
            waiting = [pool.submit(held, number) for number in range(12)]
            time.sleep(5)
            assert http.get("/healthz").status_code == 200
            sent.set()
            said = [one.result() for one in waiting]
        assert sum(answer.startswith(b"HTTP/1.1 429") for answer in said) >= 9
        assert memory(service.process.pid, "VmHWM") - before < 250
        assert "busy" in http.get("/metrics").text
        with ThreadPoolExecutor(1) as pool:  # everything was given back
            assert pool.submit(held, 0).result().startswith(b"HTTP/1.1 400")


def test_what_a_request_held_is_given_back(tmp_path):
    with running(tmp_path, max_wait=0.0, max_body=2_000_000, body_budget=2_000_000) as client:
        for body in (npy(LEVELS[0]), b"rubbish", b""):
            client.post("/v1/streams/x/adapt", content=body, headers=NPY)
            client.post("/v1/streams/x/adapt", content=body, headers={"Content-Type": "image/png"})
            client.post("/v1/streams/x/adapt", files=[("images", ("a.png", body))])
        assert client.service.bodies.used == 0


def test_images_that_unpack_beyond_the_budget_are_refused(tmp_path):
    file = io.BytesIO()
    PIL.Image.new("RGB", (2000, 2000)).save(file, "png")
    with running(tmp_path, side=None, max_wait=0.0, max_body=1_000_000, body_budget=2_000_000) as client:
        answer = client.post("/v1/streams/x/adapt", content=file.getvalue(), headers={"Content-Type": "image/png"})
        assert (answer.status_code, answer.json()["reason"]) == (429, "busy")
        assert client.service.bodies.used == 0


def test_a_form_never_touches_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    large = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(large).save(file, "png")
    assert len(file.getvalue()) > 2**20
    with running(tmp_path / "state", max_wait=0.0) as client:
        answer = client.post("/v1/streams/x/adapt", files=[("images", ("a.png", file.getvalue()))])
        assert (answer.status_code, answer.json()["reason"]) == (422, "unfit")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_rollback_reads_no_more_than_it_needs(tmp_path, chunked):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        client.post("/v1/snapshots")
        body = json.dumps({"snapshot": "0" * 10_000_000}).encode()
        content = (body[i : i + 65536] for i in range(0, len(body), 65536)) if chunked else body
        answer = client.post("/v1/streams/x/rollback", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
        for wrong in (b"", b"[]", b"{}", b'{"snapshot": 1}', b"\xff", b'{"snapshot": "000001", "more": 1}'):
            answer = client.post("/v1/streams/x/rollback", content=wrong)
            assert (answer.status_code, answer.json()["reason"]) == (422, "unfit"), wrong
        assert client.post("/v1/streams/x/rollback", json={"snapshot": "000001"}).status_code == 200


def test_a_rollback_that_does_not_come_is_408(tmp_path):
    with running(tmp_path, max_wait=0.0, timeout=0.5) as client:
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port), timeout=10) as slow:
            slow.sendall(
                f"POST /v1/streams/x/rollback HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 30\r\n\r\n{{".encode()
            )
            assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_rollbacks_begin_no_more_streams_than_there_may_be(tmp_path):
    with running(tmp_path, max_wait=0.0, max_streams=3, rate=0.0) as client:
        for name in "abc":
            send(client, name, LEVELS[0])
        client.post("/v1/snapshots")
        for name in "abc":
            client.delete(f"/v1/streams/{name}")
        for name in "de":
            send(client, name, LEVELS[0])
        with ThreadPoolExecutor(3) as pool:
            answers = list(
                pool.map(lambda name: client.post(f"/v1/streams/{name}/rollback", json={"snapshot": "000001"}), "abc")
            )
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
        assert {answer.json()["reason"] for answer in answers if answer.status_code == 409} == {"streams"}
        assert len(client.service.fleet) == 3


# -- what is sent, and from where -----------------------------------------------------------------------------------


def test_sixteen_bits_of_grey_are_scaled_as_those_of_colours_are():
    grey = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    file = io.BytesIO()
    PIL.Image.fromarray(grey).save(file, "png")
    (decoded,) = images.decoded([file.getvalue()])
    assert np.array_equal(decoded, np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=2))
    assert len(np.unique(decoded)) > 200


@pytest.mark.parametrize(("site", "may"), [("cross-site", False), ("same-site", False), ("same-origin", True)])
def test_pages_of_another_site_change_nothing(tmp_path, site, may):
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        sent = {"Sec-Fetch-Site": site}
        for path in ("/v1/streams/x/reset", "/v1/streams/x/freeze", "/v1/snapshots"):
            answer = client.post(path, headers=sent)
            assert (answer.status_code == 403) is not may, path
        assert (client.delete("/v1/streams/x", headers=sent).status_code == 403) is not may
        assert client.get("/v1/info", headers=sent).status_code == 200  # a link in a mail


def test_the_manual_loads_nothing_from_elsewhere_and_tells_of_every_address(tmp_path):
    with running(tmp_path) as client:
        answer = client.get("/docs")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "<script" not in answer.text
        assert "//" not in answer.text.replace("<!doctype", "")
        for address, verbs in client.get("/openapi.json").json()["paths"].items():
            for verb in verbs:
                assert f"{verb.upper()} {address}" in answer.text
        assert client.get("/docs/oauth2-redirect").status_code == 404


# -- one request, one end -------------------------------------------------------------------------------------------


def test_a_request_with_two_ends_is_refused_and_what_follows_is_not_read(tmp_path):
    """A proxy in front that goes by the length takes the second request for a part of the first."""
    hidden = b"DELETE /v1/streams/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    both = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    with running(tmp_path, max_wait=0.0) as client:
        send(client, "x", LEVELS[0])
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as raw:
            raw.sendall(b"POST /v1/streams/x/freeze HTTP/1.1\r\nHost: 127.0.0.1\r\n" + both + hidden)
            said = b""
            while part := raw.recv(4096):
                said += part
        assert said.startswith(b"HTTP/1.1 400")
        assert said.count(b"HTTP/1.1") == 1
        stream = client.get("/v1/streams/x")
        assert (stream.status_code, stream.json()["frozen"]) == (200, False)


def test_a_small_answer_does_not_wait_for_the_clients_acknowledgement(tmp_path):
    """On a connection that stays open each answer came 40 ms late; on a new one the kernel is in no such mood."""
    kept, fresh = [], []
    with serving.serving(tmp_path / "state") as service:
        lasting = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        for _ in range(15):
            new = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
            for connection, seconds in ((lasting, kept), (new, fresh)):
                started = time.perf_counter()
                connection.request("GET", "/healthz")
                assert connection.getresponse().read()
                seconds.append(time.perf_counter() - started)
            new.close()
        lasting.close()
    assert sorted(kept)[7] < 2 * sorted(fresh)[7]
