"""Who is there and what they may do: TLS, SASL, access control lists, quotas."""
