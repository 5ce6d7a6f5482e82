"""Curves for TensorBoard while a run goes on."""

from __future__ import annotations

import math
import os
from types import TracebackType
from typing import TYPE_CHECKING

from tidefast.errors import how_to_install

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoard:
    """Scalars of a run, written below `folder`; a context manager.

    A run that goes on from step n after an interruption calls `step(n, ...)` first: what was written from n onwards
    before is void, so TensorBoard shows every step once.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401  # fails here, before the run, when it is not installed
        except ImportError as error:
            raise ImportError(
                f"TensorBoard is not installed: {how_to_install('tensorboard')}, or leave --tensorboard out"
            ) from error
        self.folder = os.fspath(folder)
        self._writer: SummaryWriter | None = None

    def step(self, number: int, **scalars: float | None) -> None:
        """The values of one step; None and nan are left out."""
        writer = self._opened(number)
        for name, value in scalars.items():
            if value is not None and not math.isnan(value):
                writer.add_scalar(name, value, number)

    def close(self) -> None:
        """Write what is pending."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, number: int) -> SummaryWriter:
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(self.folder, purge_step=number)
        return self._writer
