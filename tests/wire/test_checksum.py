"""CRC-32C: the right sum, and nothing loaded for it that a broker at rest has no use for."""

import subprocess
import sys

from penstock.wire import checksum
from penstock.wire.checksum import crc32c

CHECK = 0xE3069283
"""The sum of `123456789` (RFC 3720)."""


def test_the_sum_is_right() -> None:
    """The known sum comes out, in one piece and in two, from each kind of buffer."""
    assert crc32c(b"123456789") == CHECK
    assert crc32c(memoryview(bytearray(b"56789")), crc32c(b"1234")) == CHECK


def test_it_is_the_packages_own() -> None:
    """The extension module is found, and sums as the package around it does."""
    import crc32c as package

    assert checksum._extension() is not None
    assert package.crc32c(b"123456789") == CHECK


def test_a_broker_at_rest_has_loaded_little() -> None:
    """A broker's modules don't bring those that only other parts need."""
    wanted = "import sys; import penstock.broker.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", wanted], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "numba", "pyarrow", "email", "zipfile", "importlib.metadata"}
