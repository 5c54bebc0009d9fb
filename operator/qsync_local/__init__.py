"""The supervisor of local clusters: members are processes of this machine."""
