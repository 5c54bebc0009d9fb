"""The operator: observes a QsyncCluster, plans, and acts, on Kubernetes or with local processes."""
