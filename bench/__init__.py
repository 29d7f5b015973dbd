"""Benchmarks: what a claim costs, and whether that holds under load, backlog and old snapshots.

Each module measures one promise of docs/benchmarks.md on a PostgreSQL server of its own, prints a
table, writes a JSON result and says whether the promise was kept. Start them with ``bench/run``.
"""
