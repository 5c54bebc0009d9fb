"""What verbs do on Kubernetes: as the person of the kubeconfig, through the API server alone."""
