"""What runs batches in this process; `penstock.engine.spark` runs them on Spark."""
