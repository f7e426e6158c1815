"""Pictures of volumes, patches, batches and chains: in notebooks, figures and viewers."""
