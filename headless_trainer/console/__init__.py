"""What a run shows while it trains."""
