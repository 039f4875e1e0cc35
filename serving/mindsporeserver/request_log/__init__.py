"""The log of requests and responses as CloudEvents, written by threads beside the event loop."""
