"""pydantic models of the custom resources: the source of the CRDs."""
