"""Adds compiled kernels to a wheel, where scripts/wheel.py names a folder of them; else it is pure Python."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):
    """A hook of Hatch's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - Hatch's
        """Is called before a wheel is built."""
        folder = os.environ.get("PENSTOCK_KERNELS")
        if folder:
            build_data["force_include"][folder] = "penstock/core/kernels/compiled"
            build_data["pure_python"] = False
            build_data["tag"] = os.environ["PENSTOCK_WHEEL_TAG"]
