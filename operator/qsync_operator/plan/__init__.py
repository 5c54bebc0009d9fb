"""The decisions about one cluster; all functions are pure."""
