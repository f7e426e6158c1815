"""The realizing part of a graph as frozen instructions: samples in, a batch out; no torch."""
