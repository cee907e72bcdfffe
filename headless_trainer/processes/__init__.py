"""The processes of a run: how they were launched, what they agree on, and the lock of their folder."""
