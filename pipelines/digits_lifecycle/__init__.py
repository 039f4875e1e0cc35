"""The digits lifecycle."""
