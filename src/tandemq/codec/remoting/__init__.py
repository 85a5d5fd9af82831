"""Frames, headers and bodies of RocketMQ's remoting protocol."""
