"""The shipped srl-grammar: the recipe `spen` on the built-in sentences, small enough for the package.

python docs/scripts/srl_grammar.py trains it (a minute on two cores) and writes src/spen/weights/srl-grammar/
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import spen
from spen.export.exportable import save_folder
from spen.models import find_model, open_model
from spen.tasks.srl.corpora import builtin_splits, prepare
from spen.tasks.srl.evaluate import evaluate, follow
from spen.tasks.srl.recipes import changed, find_recipe
from spen.tasks.srl.train import train

CHANGES = (
    *("pretrain_epochs=5", "clamped_epochs=1", "joint_epochs=2", "patience=3", "cells=512"),
    *("clamped_rate=2e-3", "joint_rate=5e-4", "rate=0.2", "constraint_weight=3.0", "violation_weight=2.0"),
)
"""Short, and independent of what the recipe takes for the large corpus."""

if __name__ == "__main__":
    # Words of the grammar are 95: vectors of 32 numbers tell them apart as well as the usual 300.
    splits = {**builtin_splits(900), "test": builtin_splits(3000)["test"]}  # the test sentences of `spen evaluate`
    data = replace(prepare(splits, name="builtin"), dimensions=32)
    with tempfile.TemporaryDirectory() as folder:
        model = train(changed(find_recipe("spen"), CHANGES), data, folder, seed=0)
        assert model is not None
        test = data.corpora["test"]
        (scores, _), violated = evaluate(model, test), follow(model, test)["violations"]
        before, after = violated[0], violated[-1]
        about = (
            f"local energy, five global terms and soft constraints on 900 sentences of the built-in grammar; "
            f"test F1 {scores['f1']['ad3']:.2f} with AD³ on {len(test.sentences)} other sentences, constraints "
            f"violated {before} times before the descent and {after} times after it on {scores['predicates']} "
            "predicates"
        )
        target = Path(spen.__file__).parent / "weights" / "srl-grammar"
        save_folder(open_model(folder).exportable(), target, True, about, find_model(folder))
    print(f"{target.name}: {about}")
