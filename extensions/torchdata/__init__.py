"""torchdata's pipes and adapters: files, archives, text, and items of any kind.

Each is loaded at the first use of its name or of its chained form. docs/migrating.md lists the
differences to torchdata, whose page of a class NAME describes the arguments at length:
https://docs.pytorch.org/data/0.9/generated/torchdata.datapipes.iter.NAME.html.
"""
