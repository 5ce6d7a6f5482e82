"""The folder of one demonstration: which settings it belongs to, where each contestant's files are, who may write."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import FolderError
from holdfast.files import locked, write_atomically
from holdfast.showcase.contestants import Contestant
from holdfast.showcase.settings import Settings

SETTINGS, SAMPLES, REPORT, LOCK = "demo.json", "samples.npz", "report.html", ".lock"
STEPS, SNAPSHOT, CONTESTANT = "steps.jsonl", "snapshot.safetensors", "contestant.json"
ERROR = "error.txt"
FORMAT = 1


class Folder:
    """`demo.json`, `samples.npz`, `report.html`, and one subfolder for each contestant."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / REPORT

    @property
    def samples(self) -> Path:
        """Sample images of the stream."""
        return self.path / SAMPLES

    def of(self, key: str) -> Path:
        """The files of one contestant."""
        return self.path / key

    def claim(self, settings: Settings, weights: str, lineup: list[Contestant], fresh: bool) -> None:
        """Make the folder this demonstration's: continue what is there, refuse what is foreign, or start afresh."""
        wanted = {"format": FORMAT, **settings.as_dict(), "weights": weights}
        self._require_ours()
        self.path.mkdir(parents=True, exist_ok=True)
        if fresh:
            self._clear()
        self._match(self._read(self.path / SETTINGS), wanted, str(self.path))
        write_atomically(self.path / SETTINGS, json.dumps(wanted, indent=1).encode())
        for contestant in lineup:
            place = self.of(contestant.key)
            place.mkdir(exist_ok=True)
            self._match(self._read(place / CONTESTANT), contestant.description(), str(place))
            write_atomically(place / CONTESTANT, json.dumps(contestant.description(), indent=1).encode())

    def settings(self) -> Settings:
        """The settings that the folder was made with."""
        found = self._read(self.path / SETTINGS)
        if found is None:
            raise FolderError(f"{self.path} holds no demonstration")
        return Settings(**{name: found[name] for name in Settings.__dataclass_fields__})

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second demonstration out of this folder; one that holds something else is not touched."""
        self._require_ours()
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / LOCK):
            yield

    def _match(self, found: dict[str, Any] | None, wanted: dict[str, Any], where: str) -> None:
        if found is None or found == wanted:
            return
        names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
        differences = ", ".join(f"{name} {found.get(name)!r} there, {wanted.get(name)!r} asked" for name in names)
        raise FolderError(
            f"{where} holds results of another configuration ({differences}): "
            "choose another folder with --out, or start afresh with --fresh, which deletes them"
        )

    def _require_ours(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file: choose another folder")
        held = {entry.name for entry in self.path.iterdir()} if self.path.exists() else set()
        if SETTINGS not in held and held - {LOCK}:
            raise FolderError(f"{self.path} is not empty and holds no demonstration: choose another folder")

    def _clear(self) -> None:
        """Delete the results of a demonstration, and nothing that is not one's."""
        for place in self.path.iterdir():
            if (place / CONTESTANT).is_file():
                shutil.rmtree(place)
        for name in (SETTINGS, SAMPLES, REPORT):
            (self.path / name).unlink(missing_ok=True)

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FolderError(f"{path} is damaged: start afresh with --fresh") from error
        if not isinstance(content, dict):
            raise FolderError(f"{path} is damaged: start afresh with --fresh")
        return content
