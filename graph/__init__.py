"""The graph of pipes: walk, rewrite, verify, explain, cut. Knows no concrete pipe."""
