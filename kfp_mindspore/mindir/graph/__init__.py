"""A MindIR's graph: metadata, decryption, ranges of indices, and its execution for any number of rows."""
