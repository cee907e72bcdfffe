"""Pushing to the Hub."""
