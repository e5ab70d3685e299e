"""CRC-32C by the processor's own instruction, from the package crc32c.

The package asks for its own version when it is imported, and for that Python loads e-mail, CSV and ZIP:
1.6 MiB of a broker's memory at rest. So the extension module is loaded without the package around it.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

    from crc32c import crc32c

__all__ = ["crc32c"]

_EXTENSION: Final = "crc32c._crc32c"


def _extension() -> ModuleType | None:
    """The package's extension module; None where the package is built in another way."""
    package = find_spec("crc32c")
    if package is None:
        return None
    found = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if found is None or found.loader is None:
        return None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    _loaded = _extension()
    if _loaded is None:
        from crc32c import crc32c
    else:
        crc32c = _loaded.crc32c
