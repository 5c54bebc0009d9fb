"""The Kubernetes platform: members are pods, disks are volumes."""
