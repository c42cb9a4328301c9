"""The version of EvoClaw.

A constant: reading the metadata of the installed package costs a small device 1.5 MB.
"""

VERSION = "0.1.0"
