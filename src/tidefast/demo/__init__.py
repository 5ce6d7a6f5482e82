"""The demonstration: several methods side by side on one drifting stream, and the page that tells what happened."""

from tidefast.demo.contestants import Contestant, pick_contestants
from tidefast.demo.demo import Demonstration, DemoOutcome, run

__all__ = ["Contestant", "DemoOutcome", "Demonstration", "pick_contestants", "run"]
