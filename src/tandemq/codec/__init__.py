"""Bytes to words and back: frames, headers, JSON bodies, log records, queue and index entries, HA frames.

Pure functions and incremental decoders; nothing here keeps more than the bytes of one unfinished frame.
"""
