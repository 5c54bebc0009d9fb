"""pydantic models of the custom resources; the CRDs are generated from them."""
