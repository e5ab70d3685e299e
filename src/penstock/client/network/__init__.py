"""Connections to brokers: addresses, logins, the few requests that every worker needs."""
