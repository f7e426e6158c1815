"""Formats that need a library of their own, registered as ``voxpipe.formats``."""
