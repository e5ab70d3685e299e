"""The states of operators: open between batches, and shared where two of them keep the same.

hot      what a lane has open from the batch before
sharing  traces that several operators keep alike
"""
