"""Zero-shot scores by the LM Evaluation Harness, kept and compared."""
