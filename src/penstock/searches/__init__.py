"""Stored searches: queries in Lucene's syntax that wait, and documents that run past them.

    syntax      a query's text -> a tree (`tree`)
    analysis    texts -> terms with positions, for documents and queries alike
    fields      which columns of documents a query can name, and what they hold
    programs    a tree -> a few integers that a kernel evaluates, and the terms without which it can't match
    stored      the index: a batch of documents against all queries at once

Invariant: `Stored.matches` gives the pairs of documents and queries that evaluating each query on each
document would give; the index only leaves out what can't match.

Everything here is pure. The order of queries, and what was looked up before, changes no result.
"""
