"""Takes a program that has changed to a version of the program before."""

from penstock.engine.upgrade.backfill import Backfilled
from penstock.engine.upgrade.upgrade import Outputs, Target, Upgrade

__all__ = ["Backfilled", "Outputs", "Target", "Upgrade"]
