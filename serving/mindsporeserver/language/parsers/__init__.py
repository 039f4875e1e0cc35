"""Tool calls and reasoning in an answer's text."""
