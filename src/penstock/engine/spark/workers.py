"""The process that Spark forks its Python workers from: it has imported what they need.

Spark's own imports after each fork, which is 1 s of processor time per worker; and it collects garbage
after each task, which takes 65 ms where all those modules are looked through. Frozen, they are not.
Arrow and its allocators prepare for forks (`pthread_atfork`); nothing else that is imported here starts
a thread, where OMP_NUM_THREADS is 1.
"""

from __future__ import annotations

import sys

from penstock.engine.spark import standby


def _load() -> None:
    import gc

    import pandas as pd  # noqa: F401 - Arrow imports it at the first conversion
    import pyspark.worker  # noqa: F401

    import penstock.engine.tasks  # noqa: F401
    from penstock.core.kernels import load_all
    from penstock.ops.registry import load_operators

    load_operators()  # some have kernels of their own
    load_all()
    gc.collect()
    gc.freeze()


def _manage() -> None:
    from pyspark import daemon

    daemon.manager()


if __name__ == "__main__":
    if standby.OPTION in sys.argv:
        if standby.stand_by(_load):
            _manage()
    elif not standby.hand_over():
        _load()
        _manage()
