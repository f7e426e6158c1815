"""torchdata's pipes and adapters: files, archives, text, and items of any kind.

Each is loaded at the first use of its name or of its chained form. torchdata describes the
arguments of a class NAME at length, and docs/migrating.md lists the differences:
https://docs.pytorch.org/data/0.9/generated/torchdata.datapipes.iter.NAME.html.
"""
