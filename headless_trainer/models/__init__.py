"""Trunks, heads and checkpoints: found, loaded, given a head."""
