"""What a server tells about itself: metrics, logs and traces."""
