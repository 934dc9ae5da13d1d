"""A miniature of the two sources of EWT: four documents, one of them without PropBank, one split differently."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def conllu(sent_id: str, words: str) -> str:
    lines = [f"# sent_id = {sent_id}"]
    for i, word in enumerate(words.split(), 1):
        tag, relation, head = ("VBD", "root", 0) if i == 2 else ("NN", "dep", 2)
        if len(words.split()) == 1:
            tag, relation, head = "UH", "root", 0
        lines.append(f"{i}\t{word}\t{word.lower()}\tX\t{tag}\t_\t{head}\t{relation}\t_\t_")
    return "\n".join(lines) + "\n\n"


def skeleton(document: str, *lengths: int) -> str:
    lines = []
    for number, length in enumerate(lengths):
        for i in range(length):
            verb = i == 1
            arguments = "(V*)" if verb else "(ARG0*)" if i == 0 else "*"
            sense = "see.01" if verb else "-"
            lines.append(
                f"{document} {number} {i} [WORD] NN *  {'see' if verb else '-'} {sense}"
                + f" {arguments}" * (length > 1)
            )
        lines.append("")
    return "\n".join(lines)


TREEBANK = {
    "not-to-release/sources/email/one.xml.conllu": conllu("email-one-1", "Dogs saw cats")
    + conllu("email-one-2", "Cats saw")
    + conllu("email-one-3", "Oh"),
    "not-to-release/sources/email/two.xml.conllu": conllu("email-two-1", "A b") + conllu("email-two-2", "C d e"),
    "not-to-release/sources/email/three.xml.conllu": conllu("email-three-1", "X y z"),
    # PropBank has sentences of 5 and 2 tokens here, where the treebank splits the 5 into 3 and 2.
    "not-to-release/sources/email/four.xml.conllu": conllu("email-four-1", "A b c")
    + conllu("email-four-2", "D e")
    + conllu("email-four-3", "F g h i"),
}
PROPBANK = {
    "docs/evaluation/ewt.train.txt": "email/00/one.xml\nemail/00/four.xml\n",
    "docs/evaluation/ewt.dev.txt": "email/00/two.xml.conllu\n",
    "docs/evaluation/ewt.test.txt": "email/00/three.xml\n\n",
    "data/google/ewt/email/00/one.xml.gold_skel": skeleton("one", 3, 2, 1),
    "data/google/ewt/email/00/two.xml.gold_skel": skeleton("two", 2, 4),
    "data/google/ewt/email/00/four.xml.gold_skel": skeleton("four", 5, 4),
}


def as_tar(files: dict[str, str], path: Path, prefix: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="surrogateescape")
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
