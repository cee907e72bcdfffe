"""Histories of items instead of texts: what users bought, read or heard, and what comes next."""
