"""The plot of benchmarks names the run whose medians it shows."""

from e2e.bench.plot import PAGE, PICTURE, medians, origin_of, summary


def test_plot_names_version_date_and_machine_of_its_page() -> None:
    origin = origin_of(PAGE.read_text())
    assert origin.startswith("qsync ")
    assert " cores, " in origin
    assert origin in PICTURE.read_text()


def test_page_names_the_order_of_the_systems_and_the_pipelined_column() -> None:
    page = PAGE.read_text()
    lines = summary(*medians(page))
    assert lines[-1].startswith("- 256 in flight: qsync")
    assert "qsync-pipelined" in lines[0]
    assert "\n".join(lines) in page


def test_plot_labels_more_than_the_powers_of_ten() -> None:
    picture = PICTURE.read_text()
    for label in ("1,000", "3,000", "10,000", "30,000"):
        assert f">{label}<" in picture
