"""The demonstration: several methods side by side on one drifting stream, and the page that tells what happened."""

from tidefast.showcase.contestants import Contestant, lineup
from tidefast.showcase.demo import Demonstration, Outcome, run

__all__ = ["Contestant", "Demonstration", "Outcome", "lineup", "run"]
