"""A new recording of the console, the live view, the web page and the report keeps its shape."""

import json
from pathlib import Path

import pytest

from e2e.recordings import FOLDER, record


@pytest.mark.timeout(400)
def test_recording_has_the_shape_of_the_stored_one(tmp_path: Path) -> None:
    record(tmp_path)
    remedy = "the output has changed: run `make recordings`, and look at the pictures"
    assert json.loads((tmp_path / "shapes.json").read_text()) == json.loads(
        (FOLDER / "shapes.json").read_text()
    ), remedy
    for path in FOLDER.iterdir():
        assert (tmp_path / path.name).stat().st_size > 500, path.name
