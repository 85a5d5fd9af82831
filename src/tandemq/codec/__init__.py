"""Encoding and decoding: frames, headers, JSON bodies, log records, queue and index entries, HA frames.

Pure functions and incremental decoders. A decoder buffers at most the bytes of one partial frame.
"""
