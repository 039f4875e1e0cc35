"""Parts of several commands: their classes, options, name completion and output."""
