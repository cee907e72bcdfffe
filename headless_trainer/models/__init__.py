"""Find and load trunks, heads and checkpoints, and attach heads."""
