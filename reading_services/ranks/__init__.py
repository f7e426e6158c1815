"""The ranks of a torch.distributed job: what they agree on, and how they end together."""
