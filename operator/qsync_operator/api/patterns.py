"""Patterns of names, without the models: commands that need only these start faster."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
"""Names have at most 40 characters, because a pod's host name has at most 63.

The longest member names have the form NAME-reader-12.
"""
USER_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"
URL_PATTERN = r"^[a-z][a-z0-9+.-]*://.+$"
FOLDER_URL_PATTERN = r"^[a-z][a-z0-9+.-]*://.+/$"
SPACE_PATTERN = r"^[^_].*$"
JOURNALS_PATTERN = r"^[-_+./=%A-Za-z0-9]+(/\*)?$"

FORMS = {
    NAME_PATTERN: "use at most 40 lower-case letters, digits and hyphens, and begin with a letter",
    USER_PATTERN: "use at most 63 letters, digits, hyphens and underscores; begin with a letter",
    URL_PATTERN: "write a URL with its scheme, such as s3://bucket/orders or file:///var/archive",
    FOLDER_URL_PATTERN: "write a URL that ends with a slash, such as s3://bucket/journals/",
    SPACE_PATTERN: "names that begin with an underscore belong to the database",
    JOURNALS_PATTERN: "write a path such as orders/eu, or all of a folder such as orders/*",
}
"""Sentences about the values to write instead of those that a pattern refuses."""
