"""Which errors a role labeller makes on development sentences, and how many an energy over arcs could repair.

    python docs/scripts/arc_errors.py RUN --data DIR

RUN is a run folder of `spen reproduce table2`, decoded with AD³. A gold argument is wrong (another role), missed (no
role) or has no candidate; an arc without a gold role that gets one is spurious. Behind each kind: how often the gold
label is among the two likeliest, how many of these arcs have a span that is a candidate of another predicate too, and
how many are at a predicate with another error. The last line is F1 if all errors of a kind were repaired.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

from spen.tasks.srl.arcs import ArcSource
from spen.tasks.srl.corpora import open_corpus
from spen.tasks.srl.decoding import decode_roles
from spen.tasks.srl.predict import Labeller


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="ewt")
    options = parser.parse_args()
    labeller = Labeller.open(options.run)
    corpus = labeller.corpus(open_corpus(options.data, ("dev",))[1]["dev"])
    source = ArcSource(corpus, cells=8192, shuffle=False)
    model = labeller.model.eval()
    count: Counter[str] = Counter(uncovered=source.missed)
    for x, target in source.batches():
        with torch.no_grad():
            y = model.feedforward(x) if labeller.feedforward else model(x).output
        found, gold, mask = decode_roles(y, target, corpus.space.core, "ad3"), target.gold, target.mask
        kinds = {
            "wrong": mask & (gold > 0) & (found > 0) & (gold != found),
            "missed": mask & (gold > 0) & (found == 0),
            "spurious": mask & (gold == 0) & (found > 0),
        }
        near = (y.topk(2, -1).indices == gold[..., None]).any(-1)
        owner = torch.arange(mask.shape[1]).repeat_interleave(mask.shape[2])
        spans, valid = x.spans.flatten(1, 2), mask.flatten(1)
        twins = (spans[:, :, None] == spans[:, None]).all(-1) & (owner[:, None] != owner)
        shared = (twins & valid[:, :, None] & valid[:, None]).any(-1).unflatten(1, mask.shape[1:])
        every = kinds["wrong"] | kinds["missed"] | kinds["spurious"]
        several = (every.sum(-1, keepdim=True) > 1).expand_as(every)
        count["gold"] += int((mask & (gold > 0)).sum())
        count["uncovered"] += int(target.uncovered.sum())
        count["right"] += int((mask & (gold > 0) & (gold == found)).sum())
        for name, wrong in kinds.items():
            count[name] += int(wrong.sum())
            count[f"{name}, near"] += int((wrong & near).sum())
            count[f"{name}, shared"] += int((wrong & shared).sum())
            count[f"{name}, several"] += int((wrong & several).sum())
    wanted = count["gold"] + count["uncovered"]
    given = count["right"] + count["wrong"] + count["spurious"]

    def f1(more_right: int = 0, more_given: int = 0) -> float:
        return 200 * (count["right"] + more_right) / (wanted + given + more_given)

    print(f"{wanted} gold arguments, {count['uncovered']} without a candidate, {count['right']} right, F1 {f1():.2f}")
    for name in ("wrong", "missed", "spurious"):
        likely, twin, more = (count[f"{name}, {part}"] for part in ("near", "shared", "several"))
        print(f"{name:9s}{count[name]:5d}  gold among the two likeliest {likely:4d}", end="")
        print(f"  span of another predicate {twin:4d}  with another error {more:4d}")
    print(f"no wrong role {f1(count['wrong']):.2f}  none missed {f1(count['missed'], count['missed']):.2f}", end="")
    print(f"  none spurious {f1(0, -count['spurious']):.2f}")


if __name__ == "__main__":
    main()
