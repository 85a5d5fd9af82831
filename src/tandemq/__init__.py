"""TandemQ: a message broker whose replica is a byte-for-byte twin of its master.

It speaks Apache RocketMQ's wire and file formats. The public names live here; everything else is reached through
its package.
"""

__version__ = "0.1.0"
