"""A web page that shows clusters live, the same for local clusters and for Kubernetes."""
