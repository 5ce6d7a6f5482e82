"""A real `tidefast serve` process, connections to it, and lone adapters that must give the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import numpy.typing as npt
import torch

import tidefast
from tidefast import models, streams
from tidefast.streams import as_tensor

Levels = npt.NDArray[np.uint8]
"""Images [N, 32, 32, 3]."""

NPY = "application/x-npy"
TOKEN = "a-token-of-some-length"
METHOD = "eta:similarity_margin=0.4"
OPTIONS = ("--method", METHOD, "--reset", "asr", "--optimizer", "adam:lr=1e-3", "--threads", "1", "--rate", "0")
"""What `lone` reproduces: bits depend on the number of threads."""


# -- the process ----------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A service that has started."""

    process: subprocess.Popen[str]
    port: int
    log: Path
    """What it writes to stderr."""
    told: str
    """The line on stdout with which it says that it serves."""

    @property
    def address(self) -> str:
        """To begin an URL with."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        """For what is not a matter of speed."""
        return httpx.Client(base_url=self.address, timeout=30, headers={"Authorization": f"Bearer {TOKEN}"})

    def kill(self) -> None:
        """As a power cut would, at once."""
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def serving(
    state: Path,
    *more: str,
    token: str | None = TOKEN,
    prepare: Callable[[], None] | None = None,
    program: Sequence[str] = (str(Path(sys.executable).with_name("tidefast")),),
) -> Iterator[Running]:
    """`tidefast serve` on a free port of loopback, killed at the end if it still runs.

    token: None for a service that asks for none.
    more: options beside `OPTIONS`; the last of two equal ones counts.
    prepare: called in the process before anything else.
    program: what `serve` is a command of.
    """
    command = [*program, "serve", "--state", str(state), "--port", "0"]
    log = state.with_name(f"{state.name}.log")
    with open(log, "a") as errors:
        process = subprocess.Popen(
            [*command, *OPTIONS, *more],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TIDEFAST_TOKEN": token or ""},
            preexec_fn=prepare,
        )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        found = re.search(r"http://\S+:(\d+) ", told)
        if found is None:
            raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")
        yield Running(process, int(found[1]), log, told)
    finally:
        process.kill()
        process.communicate(timeout=30)


# -- a connection ---------------------------------------------------------------------------------------------------


def npy(array: npt.NDArray[Any]) -> bytes:
    """The array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def head(verb: str, path: str, length: int, kind: str = NPY, token: str | None = TOKEN) -> bytes:
    """Of a request."""
    lines = [f"{verb} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}"]
    lines += [f"Content-Type: {kind}"] * (kind != "") + [f"Authorization: Bearer {token}"] * (token is not None)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def path_of(stream: str, verb: str = "adapt") -> str:
    """Where images of a stream go, to be answered with logits."""
    return f"/v1/streams/{quote(stream, safe='')}/{verb}?logits=true"


class Connection:
    """One HTTP/1.1 connection that costs little: the client shares the machine with the service.

    It opens itself when needed. Whatever ends it early is a ConnectionError.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port, self._host = port, host
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, verb: str, path: str, body: bytes = b"", **about: Any) -> tuple[int, Any]:
        """Status and content of the answer; `about` is what `head` takes."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            writer.write(head(verb, path, len(body), **about) + body)
            said = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"\r\ncontent-length: (\d+)", said)
            content = await reader.readexactly(int(length[1]) if length else 0)
            if b"\r\nconnection: close" in said:
                self.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError(str(error)) from error
        return int(said.split(b" ", 2)[1]), json.loads(content) if content else None

    def close(self) -> None:
        """Now, whatever is under way."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


# -- answers, and what they should have been ------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer to images, with what was sent."""

    levels: Levels
    said: dict[str, Any]
    seconds: float = 0.0

    @property
    def logits(self) -> torch.Tensor:
        """Bit for bit those of the service: JSON holds every float32 exactly, as a float64 with enough digits."""
        return torch.tensor(self.said["logits"], dtype=torch.float32)


async def adapt(connection: Connection, stream: str, levels: Levels, body: bytes | None = None) -> Answer:
    """Send images to a stream; a RuntimeError when they are refused."""
    started = time.perf_counter()
    status, said = await connection.ask("POST", path_of(stream), npy(levels) if body is None else body)
    if status != 200:
        raise RuntimeError(f"{status}: {said}")
    return Answer(levels, said, time.perf_counter() - started)


@dataclass(frozen=True)
class Step:
    """One batch of a stream, put together from the answers to its requests."""

    number: int
    levels: Levels
    logits: torch.Tensor


def steps_of(answers: Iterable[Answer]) -> dict[str, list[Step]]:
    """By stream, its steps in order; a ValueError when answers contradict each other or one is missing."""
    parts: dict[str, dict[int, list[Answer]]] = {}
    for answer in answers:
        parts.setdefault(answer.said["stream"], {}).setdefault(answer.said["step"], []).append(answer)
    return {
        stream: [_joined(stream, number, found) for number, found in sorted(by_step.items())]
        for stream, by_step in parts.items()
    }


def _joined(stream: str, number: int, answers: list[Answer]) -> Step:
    answers = sorted(answers, key=lambda one: one.said["batch"]["offset"])
    offset = 0
    for one in answers:
        if one.said["batch"]["offset"] != offset or not len(one.levels) == len(one.said["logits"]):
            raise ValueError(f"step {number} of {stream}: an answer is missing, or there twice, at image {offset}")
        offset += len(one.levels)
    if {one.said["batch"]["size"] for one in answers} != {offset}:
        raise ValueError(f"step {number} of {stream} has {offset} images, but its answers speak of others")
    return Step(number, np.concatenate([one.levels for one in answers]), torch.cat([one.logits for one in answers]))


@functools.cache
def _model() -> torch.nn.Module:
    return models.load("bundled-resnet")


def lone(reset: str = "asr", source: torch.Tensor | None = None, gather: int = 16) -> tidefast.Adapter:
    """An adapter as the service has one for each stream."""
    method = tidefast.methods.ETA(similarity_margin=0.4)
    optimizer = functools.partial(torch.optim.Adam, lr=1e-3)
    return tidefast.adapt(_model(), method, reset=reset, optimizer=optimizer, gather=gather, source=source)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also where zeros have signs."""
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


def wrong_answers(adapter: tidefast.Adapter, steps: Sequence[Step]) -> int:
    """Feed the steps to the adapter; how many images were answered otherwise."""
    wrong = 0
    for step in steps:
        if adapter.step != step.number - 1:
            raise ValueError(f"step {step.number} follows step {adapter.step}: one is missing")
        logits = adapter(as_tensor(step.levels))
        wrong += int((logits.view(torch.int32) != step.logits.view(torch.int32)).any(1).sum())
    return wrong


def pictures(count: int, seed: int = 0) -> Levels:
    """Bundled images under corruptions that change."""
    stream = streams.make("drift", seed=seed, steps=-(-count // 64), batch=64)
    levels = [(shown.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy() for shown in stream.batches()]
    return np.ascontiguousarray(np.concatenate(levels)[:count])
