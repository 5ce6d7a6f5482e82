"""The gallery shows every analysis."""

from __future__ import annotations

import gallery

from tidefast.paper.analyses import registry


def test_every_analysis_is_in_the_gallery_with_its_figure_and_what_it_found():
    page = gallery.PAGE.read_text()
    assert sorted(gallery.names(page)) == registry.names()
    for name in registry.names():
        section = page.partition(f"<!-- analysis {name} -->")[2].partition("<!-- end -->")[0]
        assert f"images/analyses/{name}.png" in section
        assert "| --- |" in section, f"{name} has no table: run benchmarks/gallery.py"
        assert (gallery.FIGURES / f"{name}.png").is_file()


def test_filling_the_page_replaces_what_was_there_and_nothing_else(tmp_path):
    (tmp_path / "collapse.md").write_text("## Classes in use\n\n| run | classes |\n| --- | ---: |\n| ETA | 3.0 |\n")
    page = "# Gallery\n\nBefore.\n\n<!-- analysis collapse -->\nold\n<!-- end -->\n\nAfter.\n"
    assert gallery.filled(page, tmp_path / "another folder") == page
    once = gallery.filled(page, tmp_path)
    assert once.startswith("# Gallery\n\nBefore.\n\n<!-- analysis collapse -->\n")
    assert once.endswith("<!-- end -->\n\nAfter.\n")
    assert "**Classes in use**" in once
    assert "old" not in once
    assert gallery.filled(once, tmp_path) == once


def test_the_page_of_tables_leaves_figures_to_the_gallery():
    page = gallery.tables(
        "## Summary\n\n| a |\n\n## Table 5\n\n| b |\n\n## Figure collapse: classes\n\n| c |\n\n## Table 6\n"
    )
    assert page.startswith("# Every table")
    assert "| b |" in page
    assert "Table 6" in page
    assert "| c |" not in page
