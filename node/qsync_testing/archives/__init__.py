"""Archives of simulated clusters, damage to them, and an audit that does not need Spark."""
