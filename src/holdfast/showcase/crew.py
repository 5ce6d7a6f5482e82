"""The parent's side: start worker processes, a few at a time, hear from them, stop them cleanly."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from holdfast.bench import interruption
from holdfast.showcase import worker
from holdfast.showcase.contestants import Contestant
from holdfast.showcase.folder import Folder
from holdfast.showcase.settings import Settings

Message = worker.Progress | worker.Failure


class Crew:
    """Runs contestants in processes of their own, at most `size` at once, and tells `hear` what they say."""

    def __init__(
        self, settings: Settings, folder: Folder, size: int, snapshot_every: int, hear: Callable[[Message], None]
    ) -> None:
        self._settings, self._folder, self._size, self._every = settings, folder, size, snapshot_every
        self._hear = hear
        # A forked child would inherit torch's threads in an unknown state.
        self._context = multiprocessing.get_context("spawn")
        self._working: dict[Connection, tuple[Contestant, BaseProcess]] = {}
        self.failures: dict[str, str] = {}

    def run(self, lineup: list[Contestant]) -> bool:
        """Run all of them; False when Ctrl-C ended it early.

        At the first Ctrl-C each worker finishes its batch and saves; at the second they end at once.
        """
        waiting = sorted(lineup, key=lambda contestant: -contestant.cost)
        with interruption.noticed() as wish:
            try:
                while waiting or self._working:
                    if wish.count:
                        self._tell_to_stop()
                        return False
                    while waiting and len(self._working) < self._size:
                        self._start(waiting.pop(0))
                    self._listen()
                return True
            finally:
                while self._working:
                    if wish.count > 1:
                        self._kill()
                    self._listen()

    def _start(self, contestant: Contestant) -> None:
        ours, theirs = self._context.Pipe()
        place = self._folder.of(contestant.key)
        process = self._context.Process(
            target=worker.main,
            args=(self._settings, contestant, place, self._every, theirs),
            name=f"holdfast {contestant.key}",
        )
        with interruption.held_back():
            process.start()
        theirs.close()  # so that the worker's end is the only one: its death is then an end of file here
        self._working[ours] = (contestant, process)

    def _listen(self) -> None:
        for ready in wait(list(self._working), timeout=0.2):
            assert isinstance(ready, Connection)
            try:
                message: Message = ready.recv()
            except (EOFError, ConnectionResetError):
                self._dismiss(ready)
                continue
            if isinstance(message, worker.Failure):
                self._hear_failure(message)
            else:
                self._hear(message)

    def _dismiss(self, connection: Connection) -> None:
        contestant, process = self._working.pop(connection)
        process.join()
        connection.close()
        if process.exitcode and contestant.key not in self.failures:
            self._hear_failure(worker.Failure(contestant.key, f"its process ended with code {process.exitcode}"))

    def _hear_failure(self, failure: worker.Failure) -> None:
        self.failures[failure.key] = failure.reason
        self._hear(failure)

    def _tell_to_stop(self) -> None:
        for connection in self._working:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended by itself
                connection.send("stop")

    def _kill(self) -> None:
        for _, process in self._working.values():
            process.kill()
