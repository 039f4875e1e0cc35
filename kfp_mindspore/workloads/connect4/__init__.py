"""The workload `connect4`: a connect-4 player that learns by self-play, after AlphaZero."""
