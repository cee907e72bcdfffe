"""Signals that end a command, and worker processes that leave them to their parent."""
