"""The service for hours at a light pace: mixed load, ends of all kinds, damaged files; every answer is checked.

python benchmarks/soak.py --minutes 120                      # one life: look at its memory
python benchmarks/soak.py --minutes 120 --end-every 90       # kill -9, or SIGTERM, every minute and a half or so
python benchmarks/soak.py --minutes 30 --end-every 60 --guard   # the guard with canaries, a budget, and labels
python benchmarks/soak.py --minutes 1 --end-every 10 --fault skip   # does it notice? a service of benchmarks/faulty.py

Streams get single images and batches, most of them so small that they are gathered, from one connection or two at
once; they are frozen, rolled back, reset, dropped and begun again, go to disk and come back, and have their idle files
removed or a bit of them flipped.
Between them come bad requests, clients that vanish, snapshots, and a stopped process. Each answer is compared, bit for
bit, with an adapter of the stream's own in this process. Where more than one state is right (after a kill, any that the
stream had) the answer must be that of one of them. It ends with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import io
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from faulty import FAULTS
from load import BAD, MAX_BODY
from PIL import Image
from serving import (
    Answer,
    Connection,
    Levels,
    Running,
    Step,
    adapt,
    head,
    lone,
    npy,
    path_of,
    pictures,
    same_bits,
    serving,
    steps_of,
)

import tidefast
from tidefast.datasets import open_unlabelled
from tidefast.fleet.manifest import file_name
from tidefast.streams import as_tensor

GUARD = "guard:alpha=0.2,budget=0.3,asked=16"
KEPT = 400
"""States of a stream that are remembered: as far back as any snapshot that is still there."""
LARGEST_OF = (3, 17, 40)
"""Images of a request at most, for the streams in turn: all of it is gathered into windows, some of it, little."""
ACTIONS = {
    "one": 55,
    "predict": 12,
    "picture": 12,
    "bad": 5,
    "vanish": 4,
    "freeze": 1,
    "reset": 0.5,
    "drop": 0.7,
    "rollback": 1.5,
    "damage": 1.0,
    "snapshot": 1.5,
    "look": 2,
}
"""What is done, and how often beside the others."""


def resident_memory(process: int | str) -> int:
    """In kB."""
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0])


class WrongError(Exception):
    """The service did what it promises not to do."""


@dataclass
class Kept:
    """A state that a stream had."""

    step: int
    file: Path


@dataclass(eq=False)
class Client:
    """One stream: what it may be now, and what it has been."""

    name: str
    folder: Path
    largest: int
    """Images of a request at most."""
    adapter: tidefast.Adapter
    """To compare with."""
    kept: list[Kept] = field(default_factory=list)
    possible: list[Kept] = field(default_factory=list)
    """The states that it may be in; nearly always one."""
    pending: list[Levels] = field(default_factory=list)
    """Sent, and not known to be answered."""
    labelled: tuple[Levels, list[int]] | None = None
    """Labels that were, likewise."""
    begun: bool = False
    safe: int = 0
    """The step that a kill cannot undo."""
    epoch: int = 0
    """Counts what makes `safe` meaningless: resets, rollbacks, drops."""
    damaged: bool = False
    """Its idle file was damaged: it may be at an older state, and says so."""
    flipped: bool = False
    """A bit of its idle file was flipped, once or more often."""
    busy: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._number = 0
        self._holds: Kept | None = None
        self.possible = [self._keep()]

    @property
    def step(self) -> int:
        """Where it is; the lowest where that is not sure."""
        return min(state.step for state in self.possible)

    def _keep(self) -> Kept:
        """Remember the state that the adapter is in."""
        self._number += 1
        state = Kept(self.adapter.step, self.folder / f"{self._number}.safetensors")
        self.adapter.save(state.file, durable=False)
        self.kept.append(state)
        self._holds = state
        return state

    def _forget_old(self) -> None:
        """All but the source model, the latest states, and those that it may be in."""
        lasting = {id(state) for state in (self.kept[0], *self.kept[-KEPT:], *self.possible)}
        for state in [state for state in self.kept if id(state) not in lasting]:
            state.file.unlink()
            self.kept.remove(state)

    def _hold(self, state: Kept) -> None:
        if self._holds is not state:
            self.adapter.load(state.file)
            self._holds = state

    def known(self, step: int) -> list[Kept]:
        """All states that it ever had at a step, the latest first."""
        return [state for state in self.kept[::-1] if state.step == step]

    def accept(self, step: Step, counts: bool) -> None:
        """Compare a batch with what the adapter says, from every state that is possible; only those that fit stay."""
        before = step.number - counts
        if self.damaged and all(state.step != before for state in self.possible):
            self.possible, self.damaged = self.known(before), False
        fit, tried = [], 0
        for state in self.possible:
            if state.step != before:
                continue
            tried += 1
            self._hold(state)
            images = as_tensor(step.levels)
            logits = self.adapter(images) if counts else self.adapter.predict(images)
            if same_bits(logits, step.logits):
                fit.append(self._keep() if counts else state)
            elif counts:
                self._holds = None  # the adapter has gone another way than the stream
        if not fit:
            at = sorted(state.step for state in self.possible)
            raise WrongError(f"{self.name}: step {step.number} is none of {tried} tried, the stream was at {at}")
        self.possible = fit
        self._forget_old()

    def accept_labels(self, levels: Levels, labels: list[int], said: dict[str, Any]) -> None:
        """Compare what labels came to, from every state that is possible."""
        fit = [kept for kept, told in map(functools.partial(self._told, levels, labels), self.possible) if told == said]
        if not fit:
            raise WrongError(f"{self.name}: labels came to {said} from none of {len(self.possible)} tried")
        self.possible = fit
        self._forget_old()

    def _told(self, levels: Levels, labels: list[int], state: Kept) -> tuple[Kept, dict[str, Any]]:
        self._hold(state)
        told = self.adapter.feedback(as_tensor(levels), labels).as_dict()
        return self._keep(), told

    def came_back(self, step: int | None) -> None:
        """The service has started again and says where the stream is; None: it does not know it."""
        pending, self.pending = self.pending, []
        labelled, self.labelled = self.labelled, None
        if step is None:
            if self.begun:
                raise WrongError(f"{self.name} is gone after a restart")
            self.possible = [self.kept[0]]
            return
        if step < self.safe:
            raise WrongError(f"{self.name} is at step {step} after a restart, {self.safe} were safe")
        if pending:  # what was sent and not answered may have been taken, in any order, together or apart
            for state in self.known(step - 1) if step else []:
                for chosen in (one for count in range(1, len(pending) + 1) for one in permutations(pending, count)):
                    self._advance(state, np.concatenate(chosen))
            if len(pending) == 2 and step > 1:
                for state in self.known(step - 2):
                    for first, second in permutations(pending):
                        self._advance(self._advance(state, first), second)
        if labelled is not None:
            for state in self.known(step):
                self._told(*labelled, state)
        self.possible, self.begun, self.damaged = self.known(step), True, False
        if not self.possible:
            raise WrongError(f"{self.name} is at step {step} after a restart, where it never was")
        self._forget_old()

    def _advance(self, state: Kept, levels: Levels) -> Kept:
        self._hold(state)
        self.adapter(as_tensor(levels))
        return self._keep()

    def forget(self) -> None:
        """The stream is known to be at the source model."""
        self.possible, self.safe, self.damaged = [self.kept[0]], 0, False
        self.epoch += 1


class Soak:
    """The whole: clients, chance, counts."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.state = options, folder, folder / "state"
        self.chance = random.Random(options.seed)
        self.pictures = pictures(4096, options.seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[list[tuple[float, int, int]]] = []
        """For each life: seconds since its start, kB, open files."""
        self.client_memory: list[int] = []
        """After each life, kB."""
        self.clients: list[Client] = []
        self.ending = False

    def compare(self, client: Client, step: Step, counts: bool) -> None:
        """A batch that was answered, as a step of its stream or without one."""
        few = counts and len(step.levels) < client.adapter.gather
        self.counts["comparisons: " + ("gathered" if few else "steps" if counts else "predictions")] += 1
        client.accept(step, counts)

    # -- what is done -----------------------------------------------------------------------------------------

    def some(self, count: int) -> Levels:
        start = self.chance.randrange(len(self.pictures))
        return np.take(self.pictures, range(start, start + count), axis=0, mode="wrap")

    async def one(self, client: Client, service: Running) -> None:
        """A request with images, or two at once."""
        count = 1 + (self.chance.random() < 0.3)
        requests = [self.some(self.chance.randint(1, client.largest)) for _ in range(count)]
        client.pending = requests
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(contextlib.closing(Connection(service.port))) for _ in requests]
            under_way = [adapt(connections[i], client.name, levels) for i, levels in enumerate(requests)]
            answers = await asyncio.gather(*under_way, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            raise failed[0]
        client.pending, client.begun = [], True
        given = [answer for answer in answers if isinstance(answer, Answer)]
        self.counts["images"] += sum(len(answer.levels) for answer in given)
        lost = sum({answer.said["step"]: answer.said.get("lost", 0) for answer in given}.values())
        self.counts["steps lost to damage, and told in the answer"] += lost
        if lost and not client.damaged:
            raise WrongError(f"{client.name} lost {lost} steps, and nothing was damaged")
        if not any(answer.said["frozen"] for answer in given):
            for step in steps_of(given)[client.name]:
                self.compare(client, step, True)
            return
        alone = [[answer] for answer in given if answer.said["batch"]["size"] == len(answer.levels)]
        for answers_of_one in alone or [given]:  # two requests that were answered without a step, together or apart
            self.compare(client, steps_of(answers_of_one)[client.name][0], False)

    async def picture(self, client: Client, service: Running) -> None:
        """One image as a file."""
        levels, file = self.some(1), io.BytesIO()
        Image.fromarray(levels[0]).save(file, "PNG")
        client.pending = [levels]
        with contextlib.closing(Connection(service.port)) as connection:
            status, said = await connection.ask("POST", path_of(client.name), file.getvalue(), kind="image/png")
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        client.pending, client.begun = [], True
        self.counts["images"] += 1
        self.compare(client, steps_of([Answer(levels, said)])[client.name][0], not said["frozen"])

    async def predict(self, client: Client, service: Running) -> None:
        levels = self.some(self.chance.randint(1, client.largest))
        with contextlib.closing(Connection(service.port)) as connection:
            status, said = await connection.ask("POST", path_of(client.name, "predict"), npy(levels))
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        self.counts["images"] += len(levels)
        self.compare(client, Step(said["step"], levels, Answer(levels, said).logits), False)

    async def label(self, client: Client, service: Running) -> None:
        """Labels that agree with the adapted network, or with nobody."""
        if not client.begun or client.damaged:
            return
        levels = self.some(self.chance.randint(1, client.largest))
        if self.chance.random() < 0.7:
            with torch.no_grad():
                labels = client.adapter.model(as_tensor(levels)).argmax(1).tolist()
        else:
            labels = [self.chance.randrange(10) for _ in levels]
        client.labelled = levels, labels
        address = path_of(client.name, "feedback").split("?")[0] + "?" + "&".join(f"label={one}" for one in labels)
        with contextlib.closing(Connection(service.port)) as connection:
            status, said = await connection.ask("POST", address, npy(levels))
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        client.labelled = None
        self.counts["comparisons: labels"] += 1
        self.counts["labels that changed who answers"] += said["changed"]
        client.accept_labels(levels, labels, said)

    async def bad(self, client: Client, service: Running) -> None:
        bad = self.chance.choice(BAD)
        with contextlib.closing(Connection(service.port)) as connection:
            status, said = await connection.ask("POST", path_of(client.name), bad.body, kind=bad.kind, token=bad.token)
        if (status, said["reason"]) != (bad.status, bad.reason):
            raise WrongError(f"{bad.status} {bad.reason} was to come, {status} came: {said}")

    async def vanish(self, client: Client, service: Running) -> None:
        """A client that goes away in the middle of its request: no step comes of it."""
        body = npy(self.some(8))
        content = head("POST", path_of(client.name), len(body)) + body
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(content[: self.chance.randrange(1, len(content) - 1)])
        await writer.drain()
        writer.transport.abort() if self.chance.random() < 0.5 else writer.close()

    async def act(self, client: Client, service: Running, verb: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        address = f"/v1/streams/{quote(client.name, safe='')}{path}"
        with contextlib.closing(Connection(service.port)) as connection:
            return await connection.ask(verb, address, body, kind="application/json" if body else "")

    async def freeze(self, client: Client, service: Running) -> None:
        for verb in ("/freeze", "/unfreeze"):
            status, _ = await self.act(client, service, "POST", verb)
            if status != (200 if client.begun else 404):
                raise WrongError(f"{verb} of {client.name}: {status}")
            await self.predict(client, service)
            if verb == "/freeze":
                await self.one(client, service)

    async def reset(self, client: Client, service: Running) -> None:
        client.epoch += 1
        client.safe = 0
        status, said = await self.act(client, service, "POST", "/reset")
        if status == 200 and said["step"] == 0:
            client.forget()
        elif client.begun or status != 404:
            raise WrongError(f"reset of {client.name}: {status} {said}")

    async def drop(self, client: Client, service: Running) -> None:
        begun, client.begun = client.begun, False
        client.epoch += 1
        client.safe = 0
        status, said = await self.act(client, service, "DELETE", "")
        if status != (204 if begun else 404):
            raise WrongError(f"drop of {client.name}: {status} {said}")
        client.forget()

    async def rollback(self, client: Client, service: Running) -> None:
        with contextlib.closing(Connection(service.port)) as connection:
            _, snapshots = await connection.ask("GET", "/v1/snapshots")
        if not snapshots:
            return
        client.epoch += 1
        client.safe = 0
        chosen = self.chance.choice(snapshots)["name"]
        status, said = await self.act(client, service, "POST", "/rollback", b'{"snapshot": "%s"}' % chosen.encode())
        if status == 404:  # it is not in that one, or that one has just been replaced
            return
        if status == 409 and client.flipped:  # the file in the snapshot was a link to the one that was damaged
            self.counts["rollbacks refused because of the damage"] += 1
            return
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        client.begun, client.damaged, client.possible = True, False, client.known(said["step"])
        if not client.possible:
            raise WrongError(f"{client.name} is at step {said['step']} after a rollback, where it never was")

    async def damage(self, client: Client, service: Running) -> None:
        """Remove its idle file, or flip a bit of it."""
        for file in (self.state / "idle").rglob(file_name(client.name)):
            with contextlib.suppress(OSError):
                client.damaged = True
                client.epoch += 1
                client.safe = 0
                if self.chance.random() < 0.5:
                    file.unlink()
                else:
                    content = bytearray(file.read_bytes())
                    content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
                    file.write_bytes(content)
                    client.flipped = True
                self.counts["damaged idle files"] += 1

    async def snapshot(self, client: Client, service: Running) -> None:
        before = [(one, one.epoch, one.step) for one in self.clients if one.begun and not one.damaged]
        with contextlib.closing(Connection(service.port)) as connection:
            status, said = await connection.ask("POST", "/v1/snapshots")
        if status != 201:
            raise RuntimeError(f"{status}: {said}")
        for one, epoch, step in before:
            if one.epoch == epoch:
                one.safe = max(one.safe, step)

    async def look(self, client: Client, service: Running) -> None:
        paths = ["/v1/streams?order=attention", "/v1/streams", "/v1/alarms", "/v1/info", "/openapi.json"]
        for path in paths:
            with contextlib.closing(Connection(service.port)) as connection:
                status, _ = await connection.ask("GET", path)
            if status != 200:
                raise WrongError(f"{path}: {status}")

    # -- one life ---------------------------------------------------------------------------------------------

    async def work(self, client: Client, service: Running, name: str) -> None:
        try:
            await getattr(self, name)(client, service)
            self.counts[name] += 1
        except (ConnectionError, OSError) as error:
            if not self.ending:
                self.note(f"{name} of {client.name}: {error!r}")
        except RuntimeError as error:
            if not (self.ending and "stopping" in str(error)):
                self.note(f"{name} of {client.name}: {error}")
        except (WrongError, ValueError) as error:
            self.note(f"{name}: {error}")
            client.possible = client.kept[::-1]  # so that one fault is told once
        finally:
            client.busy = False

    def note(self, what: str) -> None:
        self.wrong.append(what)
        print(f"WRONG {time.strftime('%H:%M:%S')}: {what}", flush=True)

    def sample(self, service: Running, started: float) -> None:
        with contextlib.suppress(OSError):
            resident = resident_memory(service.process.pid)
            files = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
            self.memory[-1].append((time.monotonic() - started, resident, files))

    async def life(self, service: Running, until: float) -> str:
        """Load until then; how it ended."""
        self.ending = False
        started = sampled = time.monotonic()
        actions = {**ACTIONS, "label": 15} if self.options.guard else ACTIONS
        names, weights = list(actions), list(actions.values())
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until and not (self.options.fault and self.wrong):
                await asyncio.sleep(self.chance.expovariate(self.options.rate))
                free = [client for client in self.clients if not client.busy]
                if free:
                    client = self.chance.choice(free)
                    client.busy = True
                    action = self.chance.choices(names, weights)[0]
                    tasks.create_task(self.work(client, service, action))
                if self.chance.random() < 0.0005:
                    service.process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(2)
                    service.process.send_signal(signal.SIGCONT)
                    self.counts["stopped for 2 s"] += 1
                if time.monotonic() > sampled + 10:
                    sampled = time.monotonic()
                    self.sample(service, started)
            self.sample(service, started)
            self.ending = True
            how = self.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            service.process.send_signal(how)
        code = await asyncio.to_thread(service.process.wait, 60)
        if how == signal.SIGTERM and code != 0:
            self.note(f"SIGTERM ended with {code}: {service.log.read_text()[-500:]}")
        elif how == signal.SIGTERM:  # what was answered is in its last snapshot
            for client in self.clients:
                if client.begun and not client.damaged:
                    client.safe = client.step
        return how.name

    def come_back(self, service: Running) -> None:
        with service.client() as http:
            found = {one["name"]: one["step"] for one in http.get("/v1/streams?limit=1000").json()}
        for client in self.clients:
            try:
                client.came_back(found.pop(client.name, None))
            except WrongError as error:
                self.note(str(error))
                client.possible = client.kept[::-1]
        if found:
            self.note(f"streams that nobody began: {sorted(found)}")

    def _guarded(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Options of a service with the guard, and of an adapter like those it has."""
        file = self.folder / "canaries.npy"
        np.save(file, pictures(64, 1))
        return ("--reset", GUARD, "--canaries", str(file)), {"reset": GUARD, "source": open_unlabelled(str(file))}

    def run(self) -> int:
        torch.set_num_threads(1)
        policy, like = self._guarded() if self.options.guard else ((), {})
        names = [f"camera {number} {'äöü/..%'[number % 7]}" for number in range(self.options.streams)]
        self.clients = [
            Client(name, self.folder / "kept" / str(i), LARGEST_OF[i % len(LARGEST_OF)], lone(**like))
            for i, name in enumerate(names)
        ]
        begun = time.monotonic()
        over = begun + 60 * self.options.minutes
        more = ("--resident", str(max(2, self.options.streams // 3)), "--workers", "2", "--timeout", "120")
        more += ("--max-body", str(MAX_BODY), "--snapshot-every", "7", "--keep", "3", *policy)
        served: dict[str, Any] = {}
        if self.options.fault:
            served["program"] = (sys.executable, str(Path(__file__).with_name("faulty.py")), self.options.fault)
        every = self.options.end_every
        while time.monotonic() < over and not (self.options.fault and self.wrong):
            with serving(self.state, *more, **served) as service:
                self.memory.append([])
                self.come_back(service)
                until = time.monotonic() + self.chance.uniform(0.3, 1.7) * every if every else over
                self.counts[asyncio.run(self.life(service, until))] += 1
                if "Traceback" in service.log.read_text():
                    self.note("a traceback in the log")
            self.client_memory.append(resident_memory("self"))
            print(
                f"{time.strftime('%H:%M:%S')} {(time.monotonic() - begun) / 60:.0f} min, {len(self.memory)} lives, "
                f"{self.counts['images']} images compared, {len(self.wrong)} wrong; memory at the end of this life "
                f"{self.memory[-1][-1][1] / 1024 if self.memory[-1] else 0:.0f} MB, "
                f"of the client {self.client_memory[-1] / 1024:.0f} MB",
                flush=True,
            )
        with serving(self.state, *more, **served) as service:
            self.come_back(service)
        self.told((time.monotonic() - begun) / 60)
        return 1 if self.wrong else 0

    def told(self, minutes: float) -> None:
        """Print what came of it."""
        print(f"\n{minutes:.0f} minutes, {len(self.clients)} streams, {len(self.memory)} lives\n")
        print("| what | times |\n| --- | ---: |")
        for what, count in sorted(self.counts.items()):
            print(f"| {what} | {count} |")
        print(f"| wrong | {len(self.wrong)} |")
        ends = [life[-1][1] / 1024 for life in self.memory if life]
        if len(ends) >= 8:
            few = len(ends) // 4
            told = [f"{statistics.median(ends[i * few : (i + 1) * few]):.0f}" for i in range(4)]
            print(f"at the end of each life, MB, medians of the quarters of the lives: {', '.join(told)}")
        print("client, MB, after each life:", *(f"{kilobytes / 1024:.0f}" for kilobytes in self.client_memory))
        longest = max(self.memory, key=len)
        if len(longest) >= 8:
            quarter = len(longest) // 4
            for name, place in (("MB", 1), ("open files", 2)):
                scale = 1024 if place == 1 else 1
                parts = [
                    statistics.median(sample[place] for sample in longest[i * quarter : (i + 1) * quarter]) / scale
                    for i in range(4)
                ]
                print(f"longest life, {name}, medians of its quarters: {', '.join(f'{part:.0f}' for part in parts)}")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--end-every", type=float, default=0, help="seconds between ends on average; 0: one life")
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--guard", action="store_true", help=f"--reset {GUARD} with canaries, and labels among the load"
    )
    parser.add_argument("--fault", choices=FAULTS, help="a service that is wrong on purpose; ends when it is noticed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidefast-soak-") as folder:
        sys.exit(Soak(options, Path(folder)).run())


if __name__ == "__main__":
    main()
