"""The kinds of databases that are captured, each a package of its own."""
