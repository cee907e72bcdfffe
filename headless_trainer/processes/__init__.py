"""The processes of a run: their launch, what they agree on, and the lock of their folder."""
