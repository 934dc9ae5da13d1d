"""CoNLL-U in, sentences out; and parsed sentences of spaCy and of the library conllu.

A file may have props after its ten columns (the verb, then a column of brackets for each verb), which hold the
predicates and their roles. Otherwise verbs become predicates without arguments, ready for a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spen.tasks.srl.formats.columns import assemble, read_blocks, sentence_text
from spen.tasks.srl.sentences import Argument, BadCorpus, Proposition, Sentence, read_text

COLUMNS = ("id", "words", "lemmas", "upos", "tags", "_", "heads", "deprels", "_", "_", "props?")
PARSE_FIRST = (
    "this is plain text, and roles need a parse in CoNLL-U: with Stanza, run `pip install spacy_conll[parsers]` and "
    "`parse-as-conll en stanza --input_file TEXT --output_file TEXT.conllu`; or with UDPipe "
    "`udpipe --tokenize --tag --parse MODEL.udpipe TEXT > TEXT.conllu`"
)


def read_conllu(path: str | Path) -> list[Sentence]:
    """A CoNLL-U file, gzipped or not."""
    return parse_conllu(read_text(path), path)


def parse_conllu(text: str, file: str | Path) -> list[Sentence]:
    """CoNLL-U text, which errors call `file`; where there are no props, every verb is a predicate without arguments."""
    check_tabs(text, file)
    sentences = []
    for number, block in enumerate(read_blocks(text, file, COLUMNS, tabs=True), 1):
        sentence = replace(assemble(block), sent_id=block.sent_id or str(number))
        if block.props is None:
            props = [Proposition(i, _sense(sentence, i), (Argument(i, i + 1, "V"),)) for i in find_verbs(sentence)]
            sentence = replace(sentence, propositions=tuple(props))
        sentences.append(sentence)
    return sentences


def check_tabs(text: str, file: str | Path) -> None:
    """Raise BadCorpus, with how to parse it, for text that has words but no columns."""
    rows = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    if rows and not any("\t" in row for row in rows):
        blanks = len(rows[0].split()) >= len(COLUMNS) - 1 and rows[0].split()[0] == "1"
        raise BadCorpus(file, 1, "columns of CoNLL-U are separated by tabs, not by blanks" if blanks else PARSE_FIRST)


def conllu_text(sentence: Sentence, *, props: bool = False) -> str:
    """The sentence as CoNLL-U, with its roles in further columns if `props`; parse_conllu reads it back."""
    return sentence_text(sentence, (*COLUMNS[:-1], *(("props",) if props else ())))


def as_sentences(parsed: Any) -> list[Sentence]:
    """Sentences from a spaCy Doc, a TokenList of the library conllu, a Sentence, or any number of these."""
    if isinstance(parsed, Sentence):
        return [parsed]
    if hasattr(parsed, "sents"):
        return _from_spacy(parsed)
    if hasattr(parsed, "serialize"):
        return parse_conllu(parsed.serialize(), "the TokenList")
    if isinstance(parsed, str | bytes) or not isinstance(parsed, Iterable):
        kinds = "a spaCy Doc, a conllu.TokenList, a Sentence or a list of them"
        raise TypeError(f"roles are found in parsed sentences, {kinds}, not in {type(parsed).__name__}: parse it first")
    return [sentence for one in parsed for sentence in as_sentences(one)]


def _from_spacy(doc: Any) -> list[Sentence]:
    if not doc.has_annotation("DEP"):
        raise ValueError("the Doc has no dependency parse; make it by a spaCy pipeline with a parser")
    texts = []
    for sent in doc.sents:
        tokens = [token for token in sent if not token.is_space]
        place = {token.i: number for number, token in enumerate(tokens, 1)}
        rows = []
        for token in tokens:
            root = token.head.i == token.i
            head, relation = (0, "root") if root else (place.get(token.head.i, "_"), token.dep_)
            cells = (place[token.i], token.text, token.lemma_, token.pos_, token.tag_, "_", head, relation, "_", "_")
            rows.append("\t".join(str(cell) or "_" for cell in cells))
        texts.append("\n".join(rows))
    return parse_conllu("\n\n".join(texts), "the Doc")


# Words and punctuation of the Penn treebank, with what the web treebank adds to them.
_PENN_TAGS = """
CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP VBZ
WDT WP WP$ WRB $ # , . : '' `` ( ) -LRB- -RRB- ADD AFX GW HYPH NFP XX
"""
_PENN = frozenset(_PENN_TAGS.split())


def find_verbs(sentence: Sentence) -> list[int]:
    """Tokens whose Penn tag starts with VB (without Penn tags: UPOS VERB or AUX), auxiliaries by relation left out."""
    penn = bool(sentence.xpos) and _PENN.issuperset(sentence.xpos)
    found = []
    for i in range(len(sentence)):
        verb = sentence.xpos[i].startswith("VB") if penn else sentence.upos[i] in ("VERB", "AUX")
        if verb and not sentence.deprels[i].startswith("aux"):
            found.append(i)
    return found


def _sense(sentence: Sentence, i: int) -> str:
    # In a props file `-` marks tokens that are not predicates, and blanks separate columns.
    lemma = "".join(sentence.lemmas[i].split()) if sentence.lemmas else ""
    return lemma if lemma not in ("", "-", "_") else "".join(sentence.words[i].lower().split()).replace("-", "_") or "_"
