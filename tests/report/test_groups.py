"""Which runs belong together, and what they are called."""

from typing import Any

from attnjax.records.typed import Run
from attnjax.report.groups import Panel, panels
from tests.report.synthetic import cell_id, config, run_id


def run(fields: dict[str, Any], readable: bool = True) -> Run:
    return Run(run_id(fields), cell_id(fields), fields if readable else {}, {}, "done")


def encoding(name: str, **options: Any) -> dict[str, Any]:
    return config("copy", name, 0)["model"] | {"encoding": {"name": name, "options": options}}


def labels(panel: Panel) -> list[str]:
    return [variant.label for variant in panel.variants]


def test_variants_are_named_by_what_differs_and_nothing_else():
    models = [encoding("rope", theta=theta) for theta in (500_000.0, 100, 10_000.0)] + [
        encoding("alibi", symmetric=True)
    ]
    (panel,) = panels([run(config("copy", "rope", 0, model=model)) for model in models])
    assert labels(panel) == ["RoPE, theta 100", "RoPE, theta 10000", "RoPE, theta 500000", "ALiBi"]
    ropes, alibi = panel.variants[:3], panel.variants[3]
    assert len({variant.look.color for variant in ropes}) == 1
    assert len({variant.look.dash for variant in ropes}) == len({variant.look.marker for variant in ropes}) == 3
    assert alibi.look.color != ropes[0].look.color


def test_other_settings_are_named_where_they_differ_for_the_encoding():
    train = {"steps": 400, "learning_rate": 3e-4}
    runs = [run(config("copy", "rope", 0)), run(config("copy", "rope", 0, train=train)), run(config("copy", "nope", 0))]
    (panel,) = panels(runs)
    assert labels(panel) == ["NoPE", "RoPE, batch 32, learning rate 0.001", "RoPE, learning rate 0.0003"]


def test_a_tuned_field_names_only_cells_that_nothing_else_tells_apart():
    """What RoPE under two bases chose for each of two tasks: under the same two names in both."""
    tuned = ("train.learning_rate", "train.warm")
    train = lambda rate: {"steps": 400, "learning_rate": rate, "warmup": 10}
    chosen = {("copy", 100): 1e-3, ("copy", 1e4): 1e-3, ("reverse", 100): 1e-3, ("reverse", 1e4): 3e-3}
    model = lambda theta: encoding("rope", theta=theta)
    runs = [
        run(config(task, "rope", 0, model=model(theta), train=train(rate))) for (task, theta), rate in chosen.items()
    ]
    for panel in panels(runs, tuned):
        assert labels(panel) == ["RoPE, theta 100", "RoPE, theta 10000"]
    assert labels(panels(runs)[1]) == [
        "RoPE, theta 100, learning rate 0.001",
        "RoPE, theta 10000, learning rate 0.003",
    ]
    rates = [run(config("copy", "rope", 0, train=train(rate))) for rate in (1e-3, 3e-3)]
    assert labels(panels(rates, tuned)[0]) == ["RoPE, learning rate 0.001", "RoPE, learning rate 0.003"]
    other = run(config("copy", "rope", 0, train=train(1e-3) | {"warmup": 20}))
    assert labels(panels([rates[0], other], tuned)[0]) == ["RoPE, warmup 10", "RoPE, warmup 20"]


def test_positions_that_do_not_count_from_zero_are_named_in_any_case():
    offset, usual = {"policy": "offset", "maximum": 74}, {"policy": "arange", "maximum": None}
    runs = [run(config("copy", "learned", seed, positions=offset)) for seed in range(2)]
    (panel,) = panels([*runs, run(config("copy", "nope", 0, positions=usual))])
    assert labels(panel) == ["NoPE", "Learned, policy offset"]
    more = [run(config("copy", "learned", 0, positions=offset | {"maximum": 90}))]
    (panel,) = panels([*runs, *more])
    assert labels(panel) == ["Learned, maximum 74, policy offset", "Learned, maximum 90, policy offset"]
    assert [one.label for one in panels(runs)] == ["copying"]


def test_layers_with_different_encodings_are_joined():
    layers = [{"name": "rope", "options": {}}, {"name": "nope", "options": {}}, {"name": "rope", "options": {}}]
    model = encoding("rope") | {"encoding": layers}
    (panel,) = panels([run(config("copy", "rope", 0, model=model))])
    assert labels(panel) == ["rope+nope"]


def test_tasks_are_panels_named_by_what_differs():
    short, long = config("copy", "rope", 0), config("copy", "rope", 0, length_max=50)
    other = config("reverse", "rope", 0)
    found = panels([run(fields) for fields in (short, long, other)])
    assert [panel.label for panel in found] == ["copying (length max 20)", "copying (length max 50)", "reversing"]


def test_one_name_has_one_look_in_all_panels_and_variants_of_one_encoding_differ_in_colour():
    models = [encoding("rope", theta=theta) for theta in (10_000, 100, 1_000)]
    runs = [run(config("copy", "rope", 0, model=model)) for model in models]
    runs += [run(config("sort", "rope", 0, model=model)) for model in models[:2]]
    first, second = ({one.label: one.look for one in panel.variants} for panel in panels(runs))
    assert len({look.color for look in first.values()}) == 3
    assert second == {label: first[label] for label in ("RoPE, theta 100", "RoPE, theta 10000")}


def test_a_run_without_a_config_joins_its_cell():
    runs = [run(config("copy", "rope", 0)), run(config("copy", "rope", 1), readable=False)]
    (panel,) = panels(runs)
    assert len(panel.variants[0].runs) == 2
    stray = run(config("copy", "alibi", 1), readable=False)
    assert len(panels([*runs, stray])) == 1
