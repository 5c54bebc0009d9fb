"""Settings of the operator from its environment."""

import pytest

from qsync_operator.settings import SettingsError, load_settings


def test_url_of_runbooks_has_a_place_for_the_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSYNC_NODE_IMAGE", "node:1")
    assert load_settings().site.runbook_url == ""
    url = "https://docs.example.com/runbooks/{alert}/"
    monkeypatch.setenv("QSYNC_RUNBOOK_URL", url)
    assert load_settings().site.runbook_url == url
    for invalid in ("https://docs.example.com/runbooks/", "docs/{alert}.md", "file:///{alert}"):
        monkeypatch.setenv("QSYNC_RUNBOOK_URL", invalid)
        with pytest.raises(SettingsError, match="invalid QSYNC_RUNBOOK_URL"):
            load_settings()
