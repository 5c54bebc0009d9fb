"""Folders of the repository that tests, benchmarks and scenarios read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
VECTORS = ROOT / "node" / "tests" / "vectors"
"""Files and packets of the formats, compared byte for byte."""
