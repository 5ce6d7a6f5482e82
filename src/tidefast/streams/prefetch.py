"""Batches made ahead of time by other processes, handed over in their true order.

Worker w of W makes batches start + w, start + w + W, ... and each has pipes of its own, so the order is that of
reading, a dead worker is the end of its pipe, and a dead parent is a broken pipe to its workers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch

from tidefast.streams.batch import Batch, RawBatch
from tidefast.streams.errors import StreamError

if TYPE_CHECKING:
    from tidefast.streams.seekable import Seekable

_AHEAD = 3  # finished batches that may wait in each worker, besides those in the pipe
_ROOM = 2**20  # bytes in a pipe; more is a matter of privilege
_PATIENCE = 10.0  # seconds that a terminated process may take to go


def prefetched(stream: Seekable, start: int, stop: int, workers: int) -> Generator[Batch, None, None]:
    """Batches `start` to `stop` from `workers` processes, which live as long as this generator."""
    steps = range(start, stop)
    parcel = pickle.dumps(stream, protocol=pickle.HIGHEST_PROTOCOL)
    team: list[_Worker] = []
    try:
        for number in range(min(workers, len(steps))):
            team.append(_Worker(parcel, steps[number::workers]))
            team[-1].start()
        for k in steps:
            yield team[(k - start) % workers].receive(k).batch()
    finally:
        for worker in team:
            worker.stop()
        for worker in team:
            worker.close()


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, parcel: bytes, steps: range) -> None:
        context = multiprocessing.get_context("spawn")
        their_orders, self._orders = context.Pipe(duplex=False)
        self._results, their_results = context.Pipe(duplex=False)
        _widen(self._results)
        self._theirs = (their_orders, their_results)
        self._process = context.Process(target=_work, args=self._theirs, name="tidefast-stream", daemon=True)
        # The images are many bytes, and the process reads them only after seconds of importing.
        self._sender = threading.Thread(target=_send, args=(self._orders, parcel, steps), daemon=True)

    def start(self) -> None:
        self._process.start()
        for end in self._theirs:  # only the process holds them now, so that its death is the end of the pipe
            end.close()
        self._sender.start()

    def receive(self, k: int) -> RawBatch:
        try:
            answer = pickle.loads(self._results.recv_bytes())
        except (EOFError, OSError):
            self._process.join(_PATIENCE)
            raise StreamError(
                f"a prefetch worker (process {self._process.pid}, {_ending(self._process.exitcode)}) died before it "
                f"delivered batch {k}; every batch before it was delivered. Was it killed, or out of memory? Does the "
                f'script start its work under if __name__ == "__main__":? stream.batches(start={k}) goes on from here'
            ) from None
        if isinstance(answer, _Failure):
            answer.throw(k)
        assert isinstance(answer, RawBatch)
        return answer

    def stop(self) -> None:
        if self._process.pid is not None:
            self._process.terminate()

    def close(self) -> None:
        if self._process.pid is not None:
            self._process.join(_PATIENCE)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        if self._sender.ident is not None:
            self._sender.join()
        for end in (*self._theirs, self._orders, self._results):
            end.close()
        self._process.close()


def _widen(pipe: Connection) -> None:
    """Room for a finished batch in the pipe itself, so that reading it need not wait for the worker to be scheduled."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # only Linux can, and it may allow less
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _ROOM)


def _ending(code: int | None) -> str:
    if code is None:
        return "still running"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _send(orders: Connection, parcel: bytes, steps: range) -> None:
    with contextlib.suppress(OSError):  # the process is gone; whoever reads from it will notice
        orders.send(steps)
        orders.send_bytes(parcel)


class _Failure:
    """An exception on its way to the parent, with the traceback it had in the worker."""

    def __init__(self, error: Exception) -> None:
        self.text = "".join(traceback.format_exception(error)).rstrip()
        try:
            self.error: Exception | None = pickle.loads(pickle.dumps(error))
        except Exception:  # an exception class may refuse to travel in any way it likes
            self.error = None

    def throw(self, k: int) -> None:
        where = f"in a prefetch worker, at batch {k}:\n{self.text}"
        if self.error is None:
            raise StreamError(where)
        self.error.add_note(where)
        raise self.error


def _work(orders: Connection, results: Connection) -> None:
    """What a worker process does, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it ends us
    use_one_thread()
    finished: queue.Queue[Any] = queue.Queue(_AHEAD)
    try:
        steps = orders.recv()
        parcel = orders.recv_bytes()
    except (EOFError, OSError):  # the parent is gone
        return
    threading.Thread(target=_make, args=(parcel, steps, finished), daemon=True).start()
    with contextlib.suppress(OSError):  # the parent is gone
        while (answer := finished.get()) is not None:
            results.send_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))


def _make(parcel: bytes, steps: range, finished: queue.Queue[Any]) -> None:
    try:
        stream: Seekable = pickle.loads(parcel)
        for k in steps:
            finished.put(stream.pixels(k))
    except Exception as error:  # whatever it is, the parent raises it
        finished.put(_Failure(error))
    finished.put(None)


def use_one_thread() -> None:
    """For a process that is one of several."""
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import cv2

        cv2.setNumThreads(1)
