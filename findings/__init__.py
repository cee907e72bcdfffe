"""The findings: what was measured, as one card for each question, written from the results.

`python -m findings.write` writes docs/findings/, the tables of findings on other pages and the
first lines of each record. Every figure is computed from a results.json when a page is written, so
a page cannot say anything else than its file.
"""
