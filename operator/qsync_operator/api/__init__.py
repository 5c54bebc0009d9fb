"""Custom resources: pydantic models, their conditions, and the definitions generated from them."""
