"""PostgreSQL's protocol over committed views, read only: psql, drivers, dashboards.

messages   bytes of the protocol            session    a client's statements, transactions, cursors
server     sockets, threads, the log-in     commands   words of statements that are no queries
settings   what SET and SHOW know           failures   PostgreSQL's codes of errors
"""
