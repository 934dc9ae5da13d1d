"""The model ``srl-ewt`` without the features that few arcs of the training sentences have: a smaller file.

    spen reproduce table2 --data DIR --out OUT --device cpu --seeds 1 \
        --rows spen-pairs:width=64:word_dimensions=32:base=local+width=64+word_dimensions=32
    spen export RUN whole --half
    python docs/scripts/rare_features.py whole DIR 7 smaller
    spen evaluate smaller --data DIR --split dev

A value that fewer arcs than that have is read as unknown: its row of the feature table goes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch

from spen.storage import load_weights, save_weights
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.corpora import open_corpus
from spen.tasks.srl.features import TEMPLATES, FeatureSpace

TABLE = "features.features.weight"


def main() -> None:
    source, data, least, out = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    shutil.copytree(source, out)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    settings = config["settings"]
    space = FeatureSpace.from_dict(settings["space"])
    _, splits, _ = open_corpus(data, ("train",))
    names = [name for name, values in zip(TEMPLATES, space.features, strict=True) if values]
    rules = CandidateRules(frozenset(settings["rules"]))
    common = FeatureSpace.fit(splits["train"], rules, min_count=least, templates=names)
    kept = [[v for v in own if v in set(seen)] for own, seen in zip(space.features, common.features, strict=True)]
    rows = [0]
    for template, values in enumerate(space.features):
        rows += [space.first_row(template) + k for k, value in enumerate(values) if value in set(kept[template])]
    weights = load_weights(source / "model.safetensors")
    weights[TABLE] = weights[TABLE][torch.tensor(rows)].contiguous()
    save_weights(weights, out / "model.safetensors", {"format": "pt"})
    settings["space"]["features"] = kept
    lines = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in config.items())
    (out / "config.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")  # a line for each key
    print(f"{len(weights[TABLE])} of {space.size} rows, {(out / 'model.safetensors').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
