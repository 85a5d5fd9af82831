"""An independent judge of message histories: it imports nothing of TandemQ, of the simulation, or of the chaos runs.

    clients, simulation, Java ─► HISTORY.jsonl ─► python -m judge ─► anomalies, with the lines that prove them

docs/internals/histories.md describes the format and the rules. Only the standard library is used.
"""
