"""How requests arrive and answers leave: V1, V2 and gRPC, and the HTTP connections that carry them."""
