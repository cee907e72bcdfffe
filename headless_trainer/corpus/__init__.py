"""Turn documents into rows of token ids, in memory and in streams."""
