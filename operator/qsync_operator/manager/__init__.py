"""The process of the operator: watches, one task for each cluster, the Lease, health."""
