"""Commands for the log: the broker, its topics, groups and queues, and what goes wrong there."""
