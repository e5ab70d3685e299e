"""The process that Spark forks its Python workers from: it has imported what they need.

Spark's own imports after each fork, which is 1 s of processor time per worker. Arrow and its allocators
prepare for forks (`pthread_atfork`); nothing else that is imported here starts a thread, where
OMP_NUM_THREADS is 1.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark import daemon

import penstock.engine.tasks  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
