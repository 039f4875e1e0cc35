"""The log of requests and responses as CloudEvents, written by a thread beside the event loop."""
