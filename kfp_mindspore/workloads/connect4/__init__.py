"""The workload `connect4`: a player of connect-4 that learns by self-play, after AlphaZero."""
