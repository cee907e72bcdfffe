"""Push to the Hub."""
