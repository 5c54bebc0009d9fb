"""Observe, plan, act: a QsyncCluster becomes members, on Kubernetes or as local processes."""
