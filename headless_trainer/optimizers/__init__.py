"""Optimizers: row-wise updates of embeddings, and Muon for matrices."""
