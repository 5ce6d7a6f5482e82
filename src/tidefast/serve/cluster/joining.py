"""Joining a cluster: Ray, the layout of the shared state, the steward, and the first partition that answers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tidefast.errors import how_to_install
from tidefast.serve.cluster.layout import ClusterLayout, made_layout
from tidefast.serve.cluster.logs import carried_lines
from tidefast.serve.hold import FolderHold
from tidefast.serve.settings import Settings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # for a Ray of one's own: its default is for work that can wait
os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # our own logs bound themselves
try:
    import ray
except ImportError as error:
    raise ImportError(f"--cluster needs Ray: {how_to_install('ray')}") from error

from tidefast.serve.cluster.front import Front
from tidefast.serve.cluster.partition import Reply
from tidefast.serve.cluster.steward import (
    STEWARD,
    Joined,
    Left,
    PartitionState,
    Steward,
    cores_of_nodes,
    partition_name,
)

LOCAL = "local"
"""The address that means: a Ray of one's own, on this machine alone."""

NODE = "TIDEFAST_RAY_NODE"
"""The environment variable with the IP address of the Ray node to belong to, where a machine runs several."""

_PATIENCE = 300.0  # seconds until the first partition must serve; the others may take a third of it
_CALL = 30.0  # seconds for one answer of an actor
_log = logging.getLogger("tidefast.serve")


@contextlib.contextmanager
def joined(settings: Settings) -> Iterator[Front]:
    """A front of the cluster that settings describe; what prevents it is a ValueError or an OSError."""
    common, address = settings.of_the_cluster(), settings.cluster or LOCAL
    state = Path(common.state)
    with carried_lines(settings), _held(address, state), _connected(address, state), _interruptible():
        layout = made_layout(state, settings.partitions, otherwise=max(1, int(sum(cores_of_nodes().values()))))
        name, node = secrets.token_hex(8), ray.get_runtime_context().get_node_id()
        steward = functools.partial(_steward, common, layout)
        try:
            about = _first_answer(lambda: _said_by(steward, name, node, common))
            if about["size"] is None:
                raise ValueError(f"--cluster needs to know the size of images of {settings.model}: give --side")
            yield Front(settings, layout, name, node, steward, about)
        except BaseException:  # also of the front, as when its port is taken: partitions without one serve nobody
            _leave(steward, name, node)
            raise


@contextlib.contextmanager
def _held(address: str, state: Path) -> Iterator[None]:
    """The folder of a cluster of one machine, for one process alone: two would take its partitions from each other."""
    with contextlib.ExitStack() as stack:
        if address == LOCAL:
            stack.callback(FolderHold(state, patience=2.0).close)  # a killed predecessor may still be ending
        yield


@contextlib.contextmanager
def _connected(address: str, state: Path) -> Iterator[None]:
    namespace = f"tidefast-{hashlib.blake2b(str(state).encode(), digest_size=6).hexdigest()}"
    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    if NODE in os.environ:
        options["_node_ip_address"] = os.environ[NODE]
    hint = "start Ray on this node first (ray start --address=HEAD:6379) and give --cluster auto"
    host, _, port = address.rpartition(":")
    if port.isdecimal():  # Ray would try for many minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error.strerror or error}; {hint}") from error
    try:
        ray.init(address=address, namespace=namespace, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise ConnectionError(f"cannot join the Ray cluster {address!r}: {error}; {hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the process as Ctrl-C does, so that what was begun is ended too; Ray's own handler aborts."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _steward(settings: Settings, layout: ClusterLayout) -> Any:
    """The actor, made when there is none."""
    actor = ray.remote(Steward).options(
        name=STEWARD, get_if_exists=True, lifetime="detached", max_restarts=-1, num_cpus=0, max_concurrency=1000
    )
    return actor.remote(settings, layout)


def _said_by(steward: Callable[[], Any], name: str, node: str, settings: Settings) -> list[PartitionState]:
    """The partitions, from the steward, once that answers and the front takes part."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            said: Joined = ray.get(steward().join.remote(name, node, settings), timeout=_CALL)
            if not said.problem:
                return said.partitions
            if not said.passing or time.monotonic() > deadline:
                raise ValueError(said.problem)
        except ray.exceptions.RayError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"the cluster's steward does not answer: {error}") from error
        time.sleep(1.0)


def _first_answer(partitions: Callable[[], list[PartitionState]]) -> dict[str, Any]:
    """What the service is, from a partition, once all serve or have had their time."""
    began, told = time.monotonic(), -1
    while True:
        states = partitions()
        for state in states:
            if state.phase == "failed":
                raise ValueError(state.problem)
        serving = [index for index, state in enumerate(states) if state.phase == "serving"]
        if len(serving) > told:
            _log.info("%d of %d partitions serve", told := len(serving), len(states))
        waited = time.monotonic() - began
        if serving and (len(serving) == len(states) or waited > _PATIENCE / 3):
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it has died since
                actor: Any = ray.get_actor(partition_name(serving[0]))
                reply: Reply = ray.get(actor.ask.remote("info"), timeout=_CALL)
                if reply.refused is None:
                    about: dict[str, Any] = reply.value
                    return about
        if waited > _PATIENCE:
            problems = "; ".join(sorted({state.problem for state in states if state.problem})) or "no reason is known"
            raise TimeoutError(f"no partition began within {_PATIENCE:.0f} s: {problems}")
        time.sleep(0.3)


def _leave(steward: Callable[[], Any], name: str, node: str) -> None:
    """Undo `join`, also when it was the first."""
    with contextlib.suppress(ray.exceptions.RayError):
        left: Left = ray.get(steward().leave.remote(name, node), timeout=_CALL)
        if left.last:
            ray.kill(steward(), no_restart=True)
