"""The Kubernetes platform: members are pods, and their disks are persistent volumes."""
