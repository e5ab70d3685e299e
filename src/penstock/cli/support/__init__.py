"""What the commands share: addresses, options, tables, progress, errors."""
