"""torchdata's pipes and adapters: files, archives, text, and items of any kind.

Each is loaded at the first use of its name or of its chained form.
"""
