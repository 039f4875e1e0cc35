"""Steps that deploy, register, test and query models."""
