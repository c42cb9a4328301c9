"""Compresses a value of a row by what the other columns of the row contain already.

A template is a text like the value, made of the other columns: what both have in common costs a few
bytes. Both directions need the same template, so a template never changes once it is released.
"""

from __future__ import annotations

import zlib

_HEADER = b"t"
"""The first byte of a compressed value; JSON never begins with it."""
_LEVEL = 6
_WINDOW_BITS, _MEMORY_LEVEL = 12, 5
"""Little memory, for short values."""


def compress_by(template: bytes, data: bytes) -> bytes:
    """JSON, compressed if that makes it shorter."""
    compressor = zlib.compressobj(
        _LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, template
    )
    compressed = b"".join((_HEADER, compressor.compress(data), compressor.flush()))
    return compressed if len(compressed) < len(data) else data


def decompress_by(template: bytes, data: bytes) -> bytes:
    """The JSON of `compress_by`, or one that was not compressed."""
    if not data.startswith(_HEADER):
        return data
    return zlib.decompressobj(-zlib.MAX_WBITS, template).decompress(data[1:])
