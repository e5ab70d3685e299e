"""Dead letters on their way out: what they are, and why."""
