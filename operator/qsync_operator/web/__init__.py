"""The web page on Kubernetes: a Deployment of its own, which only reads."""
