"""Compare runs on one page."""
