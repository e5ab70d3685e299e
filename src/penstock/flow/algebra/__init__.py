"""The algebra: from nodes to nodes, whose schema, key and time are derived here and nowhere else.

    project(node, columns)      the node of a step that computes columns
    join(left, right, on, how)  the node of a join, and what identifies its rows

Functions are pure, and take what has been checked: `Stream` and `Table` check what a program passes, and say
what to write; SQL's compiler walks a tree. Nothing here knows a flow: `Flow.node` gives the one node that
means the same as one made here, over the nodes that mean the same as those below it.

    rows      steps that keep nothing: columns, conditions, elements of arrays, unions
    joins     two sides by equal columns: tables, streams that are near in time, streams with tables
    groups    aggregates, windows, the first rows of each group, duplicates left out
    queries   what a query of DuckDB's gives of each group, window functions, conditions on now()
    times     closed windows, changes that wait, functions with state and timers
    patterns  matches of row patterns
    clocks    when a node's rows happen
    sizes     how many rows a node has, and whether they grow as long as streams continue
"""
