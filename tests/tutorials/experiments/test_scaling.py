"""The program of the scaling table, with runs of two steps."""

import scaling

from minibert.cli import main as cli


def test_each_run_is_a_row_of_the_table_and_a_finished_run_is_not_repeated(data, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(scaling, "command", lambda *words: (ran.append(words), cli.main([*map(str, words)])))
    monkeypatch.setattr(scaling, "trainings", lambda: [scaling.Training("bert", 32, 2, 1e-3, seed) for seed in (0, 1)])
    monkeypatch.setenv("MINIBERT_DATA", str(data.parent))
    for _ in range(2):
        assert scaling.main([str(tmp_path / "runs")]) == 0
    assert len(ran) == 2
    head, *rows = ((tmp_path / "runs" / "scaling.tsv").read_text("utf-8")).splitlines()
    rows = [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]
    assert [row["seed"] for row in rows] == ["0", "1"] and rows[0]["loss"] != rows[1]["loss"]
    assert {row["rate"] for row in rows} == {"0.001"} and {row["weights"] for row in rows} == {"326496"}


def test_the_planned_runs_are_different_and_have_three_seeds_of_each_family():
    runs = list(scaling.trainings())
    assert len(set(runs)) == len(runs)
    assert len({(run.width, run.steps) for run in runs if run.family == "bert" and run.seed == 0}) == 16
    for family in ("bert", "modernbert"):
        alike = [run.seed for run in runs if run[:4] == (family, 256, 600, scaling.RATE)]
        assert sorted(alike) == [0, 1, 2]
