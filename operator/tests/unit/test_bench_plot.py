"""The plot of benchmarks names the run whose medians it shows."""

from e2e.bench.plot import PAGE, PICTURE, origin_of


def test_plot_names_version_date_and_machine_of_its_page() -> None:
    origin = origin_of(PAGE.read_text())
    assert origin.startswith("qsync ")
    assert " cores, " in origin
    assert origin in PICTURE.read_text()
