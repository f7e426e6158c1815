"""Plans as values: pull-backs, stages, boxes, policies; nothing is read."""
