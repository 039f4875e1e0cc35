"""Networks as graphs whose weights are inputs: decoder, encoder-decoder, encoder, low-rank adapters."""
