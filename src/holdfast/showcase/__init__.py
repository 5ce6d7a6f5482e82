"""The demonstration: several methods side by side on one drifting stream, and the page that tells what happened."""

from holdfast.errors import FolderError
from holdfast.showcase.contestants import Contestant, lineup
from holdfast.showcase.demo import Outcome, run
from holdfast.showcase.results import story
from holdfast.showcase.settings import Settings

__all__ = ["Contestant", "FolderError", "Outcome", "Settings", "lineup", "run", "story"]
