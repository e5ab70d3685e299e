"""How large a program's topics were when it first read them: noted once, so that its plan stays the same.

Plans that depend on sizes decide which state there is. If a restart measured again, it would recompute that
state whenever a topic has grown. So what is noted counts until all state is computed again anyway. A
changed program measures the topics that are new to it, and the plan of what didn't change stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.log import Log
from penstock.engine.store import Store
from penstock.flow.graph import Graph

__all__ = ["measured"]


def measured(graph: Graph, store: Store, log: Log, *, anew: bool = False) -> Mapping[str, int]:
    """The records of each topic that a program reads, as noted; what isn't, is measured and noted.

    They are counted by offsets. Of a compacted topic they are more than its keys. 0 says that the topic
    was empty, or that it was read by a release that noted nothing.

    Args:
        graph: the program.
        store: the pipeline's record.
        log: where it reads.
        anew: whether nothing counts that is noted.
    """
    noted = {} if anew else store.sizes()
    if noted is None:
        number = store.newest_version()
        noted = dict.fromkeys(store.version(number).offsets, 0) if number else {}
    missing = [one for one in graph.sources if one.topic not in noted]
    if not missing:
        return noted
    for one in missing:
        log.ensure_topic(one.topic, one.partitions, one.retention_us)
    topics = [one.topic for one in missing]
    starts, ends = log.start_offsets(topics), log.end_offsets(topics)
    found = {
        topic: sum(end - starts[topic].get(partition, 0) for partition, end in ends[topic].items())
        for topic in topics
    }
    store.note_sizes({**noted, **found})
    return {**noted, **found}
