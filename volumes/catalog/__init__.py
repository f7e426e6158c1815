"""What is known of many volumes without opening them: manifests, statistics, checks."""
