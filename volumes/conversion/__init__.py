"""Volumes written anew, in chunks that suit patches."""
