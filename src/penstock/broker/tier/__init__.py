"""Old records elsewhere: closed segments in object storage, and topics as Iceberg tables."""
