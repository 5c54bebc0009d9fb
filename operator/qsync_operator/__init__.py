"""Observe, plan, act: a QsyncCluster becomes running members, on Kubernetes or as local processes."""
