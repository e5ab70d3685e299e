"""Commands for pipelines: run them, ask them, watch them."""
