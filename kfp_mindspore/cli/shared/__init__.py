"""Parts that several commands share: classes, options, name completion and output."""
