"""Row patterns in SQL. `text.matches` and `text.pattern_windows` read them.

tables    the rows of MATCH_RECOGNIZE as a table
windows   a pattern in WINDOW as a MATCH_RECOGNIZE
"""
