"""Steps that evaluate, compare and select models and samples."""
