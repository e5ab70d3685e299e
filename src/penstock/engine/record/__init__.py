"""The values of a pipeline's record: versions, what lanes report, and what is known of topics' producers.

The rest of the engine passes these values. Their JSON is read and written here alone, with the defaults
for what earlier releases didn't write; `docs/record.md` lists the fields.
"""
