"""Table 1's machinery: changed recipes, options for some rows, rows that are kept, joined and resumed, the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spen.models import open_model
from spen.tasks.denoising import crops as crops_module
from spen.tasks.denoising import report, train
from spen.tasks.denoising import reproduce as table_module
from spen.tasks.denoising.crops import Crops, windows
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.methods import Network, System
from spen.tasks.denoising.noise import parse_noise
from spen.tasks.denoising.recipes import ABLATION, expand_rows, find_recipe
from spen.tasks.denoising.report import DEPTH_COLOURS, ablation_lines, images_figure
from spen.tasks.denoising.reproduce import Job, _place, finished, line_of, options_by_row, reproduce
from spen.tasks.tables import merge_runs
from spen.tasks.task import ReproduceOrder
from tests.helpers import docs_script
from tests.tasks.denoising.few_rooms import few_rooms

TINY = {
    "batches": 4,
    "per_epoch": 2,
    "batch_size": 1,
    "crop": (24, 32),
    "width": 4,
    "warmup": 1,
}


@pytest.fixture(scope="module", autouse=True)
def small_data() -> Iterator[None]:
    """A table in a second instead of a minute."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (report, train, table_module):
            patch.setattr(module, "open_splits", lambda regime, *, quick=False: few_rooms())
        yield


def _order(out: Path, *rows: str, **more: Any) -> ReproduceOrder:
    return ReproduceOrder(out, "rooms", rows, quick=True, device="cpu", log=lambda line: None, **more)


def _table(out: Path, *rows: str, **settings: Any) -> dict[str, Any]:
    """A tiny table; without settings those of ``TINY``."""
    return reproduce(_order(out, *rows, settings={} if rows == ("none",) else settings or TINY)).whole


def _psnr(whole: dict[str, Any]) -> dict[str, float]:
    return {line["recipe"]: line["psnr"] for line in whole["table"]}


def _results(out: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((out / "rooms" / "results.json").read_text(encoding="utf-8"))
    return whole


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table")
    _table(out, "tv", "dp-3", "dp-3:steps=1:rate=0.5", "convnet+")
    return out


def test_a_recipe_can_be_changed_by_its_name() -> None:
    method = find_recipe("dp-3:steps=5:learn_rates=false").method
    assert isinstance(method, System)
    assert (method.steps, method.learn_rates) == (5, False)
    assert find_recipe("dp-3:steps=5").name == "dp-3:steps=5"
    assert find_recipe("dp-3:steps=5").paper is None
    with pytest.raises(ValueError, match=r"'dp-3:steps' does not read as recipe:key=value: 'steps' has no ="):
        find_recipe("dp-3:steps")
    with pytest.raises(ValueError, match="recipe dp-3 has no option 'depth'"):
        find_recipe("dp-3:depth=5")


def test_some_recipes_train_otherwise_on_some_data() -> None:
    best, depth = find_recipe("spen-best", "gaussian"), find_recipe("spen-best", "redkitchen")
    assert best.schedule.crop == (64, 64)
    assert isinstance(best.method, System)
    assert not best.method.blind
    assert depth.schedule.crop == (96, 128)
    assert isinstance(depth.method, System)
    assert (depth.method.scales, depth.method.blocks, depth.schedule.flips) == (1, 3, True)
    feed_forward = find_recipe("unet", "redkitchen")
    assert isinstance(feed_forward.method, Network)
    assert (feed_forward.method.scales, feed_forward.method.blocks) == (1, 3)
    assert feed_forward.schedule == depth.schedule
    assert find_recipe("dp-3", "redkitchen").schedule.batches == depth.schedule.batches
    assert find_recipe("spen-best", "rooms") == find_recipe("spen-best")
    assert find_recipe("dp-3", "gaussian") == find_recipe("dp-3")


def test_the_ablation_turns_one_thing_at_a_time() -> None:
    rows = expand_rows(("tv", "ablation"))
    assert rows[0] == "tv"
    assert rows[1:] == ABLATION
    methods = [find_recipe(name).method for name in ABLATION]
    base = vars(methods[0])
    turned = [{key for key, value in vars(m).items() if value != base[key]} for m in methods[1:]]
    assert all(1 <= len(keys - {"rate"}) <= 1 for keys in turned)
    assert {m.steps for m in methods if isinstance(m, System)} == {1, 3, 5, 10, 20}
    assert {m.momentum for m in methods if isinstance(m, System)} == {0, 0.25, 0.75}
    assert {m.iterate_loss for m in methods if isinstance(m, System)} == {"harmonic", "last"}
    strategies = {m.gradient for m in methods if isinstance(m, System)}
    assert strategies == {"compiled", "compiled-bf16", "exact", "finite-difference"}


def test_options_go_to_the_rows_that_have_them() -> None:
    names = ("tv", "convnet", "dp-3")
    chosen = options_by_row(names, "rooms", {"dp-3:seconds": 5.0, "seconds": 9.0, "momentum": 0.5})
    assert chosen["tv"] == {}
    assert chosen["convnet"] == {"seconds": 9.0}
    assert chosen["dp-3"] == {"seconds": 5.0, "momentum": 0.5}
    with pytest.raises(ValueError, match="no row among tv, convnet, dp-3 takes the option 'convnet:momentum'"):
        options_by_row(names, "rooms", {"convnet:momentum": 0.5})
    with pytest.raises(ValueError, match="no row among tv takes the option 'seconds'"):
        options_by_row(("tv",), "rooms", {"seconds": 1.0})


def test_rows_of_the_paper_are_as_the_paper_has_them() -> None:
    plain, better = find_recipe("convnet").method, find_recipe("convnet+").method
    assert isinstance(plain, Network)
    assert isinstance(better, Network)
    assert (plain.residual, plain.blind, plain.mask) == (False, False, False)
    assert (better.residual, better.blind, better.mask) == (True, True, True)
    assert plain.width == better.width == 32


def test_finished_rows_are_kept_whatever_is_asked_next(made: Path) -> None:
    whole = _table(made, "none")
    assert list(_psnr(whole)) == ["tv", "convnet+", "dp-3", "dp-3:steps=1:rate=0.5", "dp-3, shipped"]
    assert _results(made)["table"] == whole["table"]
    again = _table(made, "dp-3")
    assert _psnr(again) == _psnr(whole)
    result = next(r for r in whole["results"] if r["recipe"] == "dp-3")
    assert (result["batches"], result["seed"]) == (4, 0)
    assert result["parameters"] == 4 * 49 + 4 + 16 * 49 + 4 + 4 + 1 + 3
    assert _psnr(whole)["tv"] > whole["raw"]["psnr"] + 3
    assert finished(ReproduceOrder(made, "rooms", quick=False)) == []
    assert sorted(path.name for path in (made / "rooms").iterdir()) == [
        "convnet+", "dp-3", "dp-3,steps=1,rate=0.5", "report.html", "results.json", "tv",
    ]  # fmt: skip


def test_a_classical_row_has_one_seed_and_the_others_a_spread(made: Path, tmp_path: Path) -> None:
    whole = reproduce(_order(tmp_path, "tv", "convnet+", seeds=(0, 1), settings=TINY, merge=(made,))).whole
    rows = {line["recipe"]: line for line in whole["table"]}
    assert (rows["tv"]["seeds"], rows["convnet+"]["seeds"]) == (1, 2)
    assert (rows["tv"]["spread"], rows["convnet+"]["spread"] > 0) == (None, True)


def test_a_finished_row_does_not_answer_for_another(made: Path) -> None:
    other = _table(made, "dp-3", **TINY, momentum="0")
    (result,) = [r for r in other["results"] if r["recipe"] == "dp-3"]
    assert "holds another run (recipe.method.momentum: " in result["problem"]
    assert result["problem"].endswith(" there, 0.0 now); give another folder, or delete it to start anew")
    assert _psnr(other)["dp-3"] is None
    assert _psnr(_table(made, "dp-3"))["dp-3"] is not None


def test_what_other_machines_made_is_joined(made: Path, tmp_path: Path) -> None:
    whole = reproduce(_order(tmp_path / "new", "none", merge=(made,))).whole
    assert "dp-3" in _psnr(whole)
    assert open_model(tmp_path / "new" / "rooms" / "dp-3" / "seed-0").model is not None
    assert not (tmp_path / "new" / "rooms" / "dp-3" / "seed-0" / "state").exists()
    scores = tmp_path / "new" / "rooms" / "dp-3" / "seed-0" / "test.json"
    scores.write_text("{}")
    merge_runs(made, tmp_path / "new", "rooms", "test.json")
    assert scores.read_text() == "{}", "a run that is there is not replaced"
    with pytest.raises(ValueError, match="nowhere is no folder to merge"):
        merge_runs(tmp_path / "nowhere", tmp_path, "rooms", "test.json")


def test_a_row_out_of_time_goes_on_and_ends_as_if_it_had_not_stopped(made: Path, tmp_path: Path) -> None:
    order = _order(tmp_path, "dp-3", settings=TINY, seconds=0.0)
    first = reproduce(order)
    assert first.whole["results"][0]["unfinished"]
    assert not first.finished
    assert "unfinished" in line_of(first.whole["table"][0])
    second = reproduce(order)
    assert second.finished
    assert _psnr(second.whole)["dp-3"] == _psnr(_results(made))["dp-3"]


def test_a_row_in_a_box_of_seconds_ends_with_a_result(tmp_path: Path) -> None:
    line = _table(tmp_path, "convnet+", **{**TINY, "batches": 10**6, "seconds": 1.0})["table"][0]
    assert line["psnr"] > 20
    assert 4 < line["batches"] < 10**6, "the clock ended it, not the count"


def test_a_row_prints_with_its_spread_and_the_papers_figure() -> None:
    line = {
        "recipe": "dp-3",
        "psnr": 39.0,
        "spread": 0.05,
        "surface_psnr": 45.0,
        "hole_rmse_mm": float("nan"),
        "paper": 40.4,
        "seeds": 3,
        "train_seconds": 60.0,
        "problem": None,
    }
    assert line_of(line).split() == ["dp-3", "39.00", "±", "0.05", "45.00", "40.40", "3", "60"]
    assert line_of({**line, "psnr": None, "problem": "no card"}).split() == ["dp-3", "no", "card"]


def test_the_report_shows_tables_pictures_and_curves(made: Path) -> None:
    whole = _results(made)
    page = (made / "rooms" / "report.html").read_text(encoding="utf-8")
    assert "<td>dp-3, shipped</td><td>" in page
    assert "One choice at a time" in page
    assert "steps = 1, rate = 0.5" in page
    assert page.count("data:image/png;base64,") == 1
    for chart in ("energy, less that of the start", "PSNR, dB", "development PSNR, dB"):
        assert f'aria-label="{chart}"' in page
    lines = {changed: better for changed, _, better in ablation_lines(whole)}
    assert lines["dp-3 as it is"] is None
    scores = _psnr(whole)
    assert lines["steps = 1, rate = 0.5"] == pytest.approx(scores["dp-3:steps=1:rate=0.5"] - scores["dp-3"])


def test_rows_stand_in_the_order_of_table_and_ablation() -> None:
    rows = ["dp-3:width=8", "dp-3:steps=10:rate=0.1", "dp-3:steps=5:rate=0.15", "dp-icnn+", "dp-3", "foe-20"]
    wanted = ["foe-20", "dp-3", "dp-icnn+", "dp-3:steps=5:rate=0.15", "dp-3:steps=10:rate=0.1", "dp-3:width=8"]
    assert sorted(rows, key=_place) == wanted


def test_a_changed_recipe_is_compared_by_the_seeds_that_both_have() -> None:
    scores = {
        ("dp-3", 0): 39.0,
        ("dp-3", 1): 39.2,
        ("dp-3", 2): 50.0,
        ("dp-3:steps=1", 1): 38.9,
        ("dp-3:steps=2", 3): 1.0,
    }
    results = [{"recipe": name, "seed": seed, "psnr": value} for (name, seed), value in scores.items()]
    results.append({"recipe": "dp-3:steps=1", "seed": 0, "problem": "no card"})
    table = [{"recipe": name} for name in ("dp-3", "dp-3:steps=1", "dp-3:steps=2")]
    found = [(changed, better) for changed, _, better in ablation_lines({"table": table, "results": results})]
    assert found == [("dp-3 as it is", None), ("steps = 1", pytest.approx(-0.3)), ("steps = 2", None)]


def test_folders_of_changed_recipes_have_plain_names() -> None:
    job = Job("dp-3:steps=5", 1, ReproduceOrder(Path("out"), "rooms"))
    assert job.folder == Path("out/rooms/dp-3,steps=5/seed-1")


GAUSSIAN = parse_noise("gaussian:25")


def test_noise_is_drawn_for_every_batch_and_again_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = few_rooms().train
    crops = Crops(frames, (16, 16), noise=GAUSSIAN)
    first, second = crops.batch(0, 0, 64), crops.batch(0, 64, 64)
    again = Crops(frames, (16, 16), noise=GAUSSIAN).batch(0, 0, 64)
    assert torch.equal(first.noisy, again.noisy)
    noise = [batch.noisy - batch.truth for batch in (first, second)]
    assert not torch.equal(*noise)
    assert float(noise[0].std()) == pytest.approx(25 / 255, rel=0.02)
    assert not torch.equal(crops.batch(1, 0, 64).noisy - crops.batch(1, 0, 64).truth, noise[0])
    monkeypatch.setattr(crops_module, "BYTES", 1)  # no frame fits
    assert torch.equal(Crops(frames, (16, 16), noise=GAUSSIAN).batch(0, 0, 64).noisy, first.noisy)


def test_windows_fall_evenly_and_do_not_depend_on_their_company() -> None:
    integrals = np.multiply.outer(np.arange(10), np.arange(14)).astype(np.int32)[None]  # every pixel of 9×13 counts
    indices = np.arange(20_000)
    places = windows(integrals, 0 * indices, 3, 5, indices, (4, 4), flips=True)
    for start, many in ((places.top, 6), (places.left, 10)):
        share = np.bincount(start, minlength=many) / len(start)
        assert np.abs(share - 1 / many).max() < 0.01
    for turned in places[2:]:
        assert abs(turned.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(places.top[:-1], places.top[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(places.top, places.left)[0, 1]) < 0.03
    some = windows(integrals, 0 * indices[:3], 3, 5, indices[7:10], (4, 4), flips=True)
    assert all(np.array_equal(a[7:10], b) for a, b in zip(places, some, strict=True))


def test_photographs_are_grey_and_black_in_them_is_no_gap() -> None:
    every = torch.ones(1, 6, 8, dtype=torch.bool)
    truth = torch.linspace(0, 1, 48).reshape(1, 6, 8)
    photograph = Frame(truth, every, truth, every, every, ~every)
    seen = every.clone()
    seen[0, 2, 3] = False
    depth = Frame(truth * seen, seen, truth, seen, seen, ~seen)
    for frame, colours in ((photograph, "gray"), (depth, DEPTH_COLOURS)):
        figure = images_figure(frame, {"dp-3": truth})
        shown = [axis.images[0] for axis in figure.axes if axis.images]
        assert shown[0].get_cmap().name == colours
        assert not np.ma.getmaskarray(np.ma.masked_invalid(shown[0].get_array())).any()
        assert np.isnan(shown[1].get_array().filled(np.nan)).sum() == (frame is depth)


def test_the_pages_take_their_tables_from_the_results(made: Path, tmp_path: Path) -> None:
    script = docs_script("denoising_table")
    whole = _results(made)
    table = script.main_table(whole)
    score = _psnr(whole)["dp-3"]
    assert f"| `dp-3` | {score:.2f} |" in table
    assert "steps=1" not in table
    assert "| steps = 1, rate = 0.5 |" in script.ablation_table(whole)
    places = [f"table {data}" for data in script.DATA] + ["table as printed", "ablation"]
    pages = {page.name: page.read_text(encoding="utf-8") for page in script.PAGES}
    script.PAGES = [tmp_path / name for name in pages]
    for page in script.PAGES:
        page.write_text(pages[page.name], encoding="utf-8")
    for name in places:
        script.put(name, f"NEW {name}")
        (found,) = [page for page in script.PAGES if f"NEW {name}\n" in page.read_text(encoding="utf-8")]
        assert f"<!-- {name} -->\nNEW {name}\n<!-- end -->" in found.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="no page has a place for weather"):
        script.put("weather", "")


def test_rows_as_printed_show_the_psnr_of_the_authors_code(made: Path) -> None:
    whole = _results(made)
    plain = docs_script("denoising_table").main_table(whole).splitlines()
    row = next(line for line in whole["table"] if line["recipe"] == "dp-3")
    renamed = {**whole, "table": [{**row, "recipe": "paper/dp-3"}]}
    head, _, noisy, printed = docs_script("denoising_table").main_table(renamed).splitlines()
    assert "every pixel" not in plain[0]
    assert "every pixel, dB" in head
    assert f"| {whole['raw']['clamped_psnr']:.2f} |" in noisy
    assert f"| {row['clamped_psnr']:.2f} |" in printed
