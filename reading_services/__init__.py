"""Reading services: where the graph runs."""
