"""Which EvoClaw this is.

Said here, not asked of the installed package: reading its metadata costs a small device 1.5 MB.
"""

VERSION = "0.1.0"
