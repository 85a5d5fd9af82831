"""Input for the engine's tests, and its fuzzer: `python -m tests.fuzz`.

frames.py    sends as clients write them, and as none should; other requests between them
values.py    unusual values, for frames.py
records.py   records of the log, valid and damaged
reduction.py the smallest part of an input that still fails
"""
