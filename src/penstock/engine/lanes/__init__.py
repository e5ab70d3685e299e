"""Lanes: tasks of one Spark job that stay, and run one micro-batch after another.

    driver                       lane 0                     lane 1
      | go (plan, traces)  ------> |                          |
      | -------------------------- | -----------------------> |
      |                            | level 0: its splits      | level 0
      |                            | <== parcels, level's end ==> |        (`exchange`)
      |                            | level 1: its shards      | level 1
      | <------ report ----------- |                          |
      | <-------------------------------- report ------------ |

A Spark job costs 100 to 170 ms, a round of these messages 0.1 ms (decision 18). Spark places the lanes,
carries the code there, and starts a lost one again.

Invariant: each attempt at a batch has a *ticket*, a number that only grows; whatever belongs to an
older ticket is dropped unread. So an attempt that was given up may continue for a while, and does no harm:
it could only write what the next attempt writes as well (`penstock.engine.store`).
"""
