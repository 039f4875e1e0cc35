"""A MindIR's graph: metadata, decryption, ranges of indices, and the execution for any number of rows."""
