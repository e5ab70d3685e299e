"""Share groups: records handed to workers one by one, acknowledged one by one (KIP-932)."""
