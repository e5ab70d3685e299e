"""A plugin of Penstock: each kind is a file here, and a line under `entry-points` of pyproject.toml."""
