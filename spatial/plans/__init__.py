"""What a patch is made of, as values: pull-backs, stages, boxes, policies; nothing is read."""
