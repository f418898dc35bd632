"""Medians, ratios and the table."""

from __future__ import annotations

from report import Measurement, markdown, ratio, summarize_all


def measured(
    engine: str,
    speed: float,
    *,
    precision: str = "bf16",
    workload: str = "single",
    foreign_share: float = 0.0,
    **figures: float,
) -> Measurement:
    return Measurement(
        engine=engine,
        precision=precision,
        workload=workload,
        figures={"tokens_per_second": speed, **figures},
        seconds=1.0,
        foreign_share=foreign_share,
    )


def row(table: str, title: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_summary_has_the_median_and_the_extremes_of_the_rounds() -> None:
    rounds = [measured("vLLM", speed) for speed in (30.0, 10.0, 17.0)]

    summary = summarize_all(rounds)["vLLM bf16"]["single"]

    assert (summary.median, summary.lowest, summary.highest) == (17.0, 10.0, 30.0)
    assert (summary.rounds, summary.noisy_rounds) == (3, 0)


def test_the_ratio_is_to_the_best_peer_of_the_same_precision() -> None:
    found = summarize_all(
        [
            measured("tokenmill", 120.0),
            measured("tokenmill HTTP", 500.0),
            measured("vLLM", 45.0),
            measured("llama.cpp", 100.0),
            measured("llama.cpp", 400.0, precision="4-bit"),
        ]
    )

    assert ratio(found, "bf16", "single") == (1.2, "llama.cpp")
    assert ratio(found, "4-bit", "single") is None
    assert ratio(found, "bf16", "mixed") is None


def test_the_table_has_a_row_for_each_engine_and_for_the_ratios() -> None:
    table = markdown(
        [
            measured("tokenmill", 120.0, time_to_first_token=0.05),
            measured("tokenmill HTTP", 114.0, client_cpu_share=0.03),
            measured("llama.cpp", 100.0, time_to_first_token=0.0801),
            measured("tokenmill", 900.0, workload="mixed"),
        ]
    )

    assert row(table, "tokenmill bf16") == ["120", "", "", "900", "", "50"]
    assert row(table, "llama.cpp bf16") == ["100", "", "", "", "", "80"]
    assert row(table, "**tokenmill / best peer, bf16**")[0] == "**1.20x** llama.cpp"
    assert row(table, "HTTP / offline, bf16") == ["0.95x", "", "", "", "", ""]
    assert "tokenmill HTTP bf16 single 3.0%" in table
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_a_figure_of_mostly_noisy_rounds_is_marked() -> None:
    rounds = [measured("vLLM", 10.0, foreign_share=share) for share in (0.3, 0.2, 0.0)]

    assert row(markdown(rounds), "vLLM bf16")[0] == "10*"
    assert row(markdown(rounds[1:]), "vLLM bf16")[0] == "10"
    assert "*: other processes used more than 5%" in markdown(rounds)
    assert "*:" not in markdown(rounds[1:])


def test_without_a_peer_there_are_no_ratios() -> None:
    table = markdown([measured("tokenmill", 120.0)])

    assert "best peer" not in table
    assert "offline, bf16" not in table
