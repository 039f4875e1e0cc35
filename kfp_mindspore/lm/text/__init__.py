"""Texts before they are token IDs: chat templates, examples, packed windows, published pairs."""
