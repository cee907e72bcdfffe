"""Checkpoints: written whole, found again, and left when a run is stopped."""
