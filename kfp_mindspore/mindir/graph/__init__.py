"""A MindIR's graph: metadata, decryption, ranges of indices, and execution for any number of rows."""
