"""From documents to rows of token ids, in memory and in streams."""
