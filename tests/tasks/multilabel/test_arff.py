"""ARFF files: dense and sparse, labels from MEKA's header and MULAN's XML."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spen.tasks.multilabel.arff import read_arff
from spen.tasks.multilabel.data import load
from tests.tasks.multilabel.small import read, write

X = [[0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
Y = [[1.0, 0.0], [1.0, 1.0]]
DENSE = """% a comment
@relation 'toy: -C 2'
@attribute sport {0,1}
@attribute 'fine art' {0,1}
@attribute length numeric
@attribute "a b" REAL
@attribute c integer
@data
1,0,0.5,1.0,0
1,1,0,0,2
"""
PLAIN = DENSE.replace(": -C 2", "")
SPARSE = PLAIN.split("@data")[0] + "@data\n{0 1,2 0.5,3 1.0}\n{0 1, 1 1, 4 2}\n"
XML = """<?xml version="1.0"?><labels xmlns="http://mulan.sourceforge.net/labels">
<label name="fine art"></label><label name="sport"></label></labels>"""


def test_dense_and_sparse(tmp_path: Path) -> None:
    dense = read(write(tmp_path, "a.arff", DENSE))
    assert dense.x.tolist() == X
    assert dense.y.tolist() == Y
    assert dense.labels == ("sport", "fine art")
    path = write(tmp_path, "b.arff", SPARSE)
    assert torch.equal(read(path, "sport", "fine art").x, dense.x)
    assert read(path, "fine art").x.shape == (2, 4)
    with pytest.raises(ValueError, match="b.arff does not say which columns are labels: give --targets, some of sport"):
        read(path)


@pytest.mark.parametrize("xml", ["yeast-train.xml", "yeast.xml"])
def test_mulans_files_side_by_side(tmp_path: Path, xml: str) -> None:
    train = write(tmp_path, "yeast-train.arff", SPARSE + "{4 1}\n")
    write(tmp_path, "yeast-test.arff", PLAIN)
    labels = write(tmp_path, xml, XML)
    splits = load(train, dev=0.5)
    assert splits.train.labels == ("fine art", "sport")
    assert splits.test.y.tolist() == [[0, 1], [1, 1]]
    assert splits.test.x.tolist() == X
    labels.rename(tmp_path / "other.xml")
    assert torch.equal(load(train, [str(tmp_path / "other.xml")], dev=0.5).test.y, splits.test.y)
    write(tmp_path, "yeast.xml", XML.replace("sport", "music"))
    with pytest.raises(
        ValueError, match=r"yeast\.xml has the label 'music', which .*yeast-train\.arff does not: it be"
    ):
        load(train)
    write(tmp_path, "yeast.xml", "<labels><label/>")
    with pytest.raises(ValueError, match=r"yeast\.xml is no list of labels as MULAN writes it: "):
        load(train)


def test_labels_at_the_end_and_nominal_inputs(tmp_path: Path) -> None:
    text = "@relation 't: -C -1'\n@attribute colour {red,'dark blue',green}\n@attribute l {0,1}\n@data\n'dark blue',1\n"
    found = read(write(tmp_path, "c.arff", text + "green,0\n?,1\n"))
    assert found.x.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert found.y.tolist() == [[1], [0], [1]]


def test_a_missing_number_becomes_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(write(tmp_path, "d.arff", DENSE.replace("1,0,0.5,1.0,0", "1,0,?,1.0,0") + "0,0,3,0,0\n"))
    assert found.x[:, 0].tolist() == [1.5, 0, 3]
    assert "d.arff: 1 missing values in the column 'length'; a number becomes the mean of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("@data", "@dat"), "it has no @data"),
        (("1,0,0.5,1.0,0\n1,1,0,0,2\n", ""), "d.arff has no rows"),
        (("1,0,0.5,1.0,0", "1,0,0.5,1.0"), "a row has 4 values for 5 attributes"),
        (("1,0,0.5,1.0,0", "1,7,0.5,1.0,0"), "'7' is no value of 'fine art'"),
        (
            ("1,0,0.5,1.0,0", "1,?,0.5,1.0,0"),
            "a value of the target 'fine art' is missing; fill it in, or remove the r",
        ),
        (("1,0,0.5,1.0,0", "1,0,long,1.0,0"), "d.arff: 'long' is no value of 'length'"),
        (("length numeric", "length string"), "is of type string"),
        (("length numeric", "c numeric"), "d.arff has the column 'c' twice"),
        (("length numeric", "length"), "d.arff: '@attribute length' has no name and type of an attribute"),
        (("sport {0,1}", "sport {0,1"), "d.arff: '@attribute sport {0,1' has no name and type of an attribute"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, "d.arff", DENSE.replace(*change)))


@pytest.mark.parametrize("kind", ["{0,1}", "{1,0}", "numeric", "{1, 0}"])
def test_labels_are_0_and_1_in_either_order(tmp_path: Path, kind: str) -> None:
    header = f"@relation 't: -C 1'\n@attribute l{' ' * (kind == 'numeric')}{kind}\n@attribute a numeric\n@data\n"
    assert read(write(tmp_path, "a.arff", header + "1,3\n0,4\n")).y.tolist() == [[1], [0]]
    sparse = read(write(tmp_path, "b.arff", header + "{1 3}\n{0 1}\n{0 0,1 4}\n"))
    left_out = 1 if kind.startswith("{1") else 0  # a sparse row leaves out the first nominal value
    assert sparse.y.tolist() == [[left_out], [1], [0]]
    assert sparse.x.tolist() == [[3], [0], [4]]


@pytest.mark.parametrize(
    ("kind", "rows", "values"),
    [("{yes,no}", "yes no", "no, yes"), ("{a,b,c}", "b a", "a, b"), ("numeric", "1 2.5", "1, 2.5")],
)
def test_other_labels_are_named(tmp_path: Path, kind: str, rows: str, values: str) -> None:
    text = f"@relation 't: -C 1'\n@attribute 'fine art' {kind}\n@attribute a numeric\n@data\n"
    text += "".join(f"{row},3\n" for row in rows.split())
    with pytest.raises(
        ValueError, match=rf"a\.arff: the target 'fine art' has the values {values}; a target is 0 or 1"
    ):
        read(write(tmp_path, "a.arff", text))


def test_a_sparse_row_leaves_out_the_first_value_of_an_input(tmp_path: Path) -> None:
    header = "@relation 't: -C 1'\n@attribute l {0,1}\n@attribute a {1,0}\n@attribute b {x,y,z}\n@data\n"
    found = read(write(tmp_path, "a.arff", header + "{0 1}\n{1 0,2 z}\n"))
    assert found.x.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1]]
    assert found.y.tolist() == [[1], [0]]


@pytest.mark.parametrize("cell", ["-1 9", "5 1", "x 1", "3"])
def test_a_sparse_cell_of_no_attribute_is_refused(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path, "a.arff", SPARSE.replace("{0 1, 1 1, 4 2}", "{" + cell + "}"))
    with pytest.raises(ValueError, match=rf"a\.arff: '{cell}' in a sparse row is not an index from 0 to 4 and a value"):
        read(path)


COLOURS = """@relation 'toy: -C 1'
@attribute l {0,1}
@attribute f numeric
@attribute g {0,1}
@attribute colour {red,green,blue}
@data
1,1,0,red
0,2,1,blue
"""


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("@attribute f", "@attribute h"), "lacks the column 'f', which the model was trained on"),
        (
            ("f numeric\n", "f numeric\n@attribute e {0,1}\n"),
            "has the column 'e', which the model does not know: remove",
        ),
        (("red", "pink"), r"'pink' in the column 'colour' is none of the words it was trained on \(red, green, blue\)"),
        (("-C 1", "-C 2"), "has the label f, which the training part does not"),
    ],
)
def test_a_test_part_with_other_columns_is_refused(tmp_path: Path, change: tuple[str, str], difference: str) -> None:
    text = COLOURS.replace(*change)
    text = text.replace("1,1,0", "1,1,0,0").replace("0,2,1", "0,2,1,1") if "@attribute e" in text else text
    write(tmp_path, "toy-test.arff", text)
    with pytest.raises(ValueError, match=rf"toy-test\.arff:? {difference}"):
        load(write(tmp_path, "toy-train.arff", COLOURS), dev=0.5)


def test_a_test_part_may_have_its_own_order_and_its_own_way_to_write_0_and_1(tmp_path: Path) -> None:
    train = write(tmp_path, "toy-train.arff", COLOURS)
    text = COLOURS.replace("f numeric\n@attribute g {0,1}", "g numeric\n@attribute f numeric").replace("{0,1}", "{1,0}")
    write(tmp_path, "toy-test.arff", text.replace("1,1,0,red", "1,0,1,red").replace("0,2,1", "0,1,2"))
    test = load(train, dev=0.5).test
    assert test.x.tolist() == [[1, 0, 1, 0, 0], [2, 1, 0, 0, 1]]
    assert test.y.tolist() == [[1], [0]]


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\\'\"%{}?\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n"), min_size=1
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(allow_nan=False, width=32), st.booleans()), min_size=1, max_size=5), WORDS)
def test_what_is_written_is_read(rows: list[tuple[float, bool]], name: str) -> None:
    name = name.strip() or "a"
    head = f"@relation 'r: -C 1'\n@attribute label {{0,1}}\n@attribute '{name}x' numeric\n@data\n"
    dense = read_arff(Path("a.arff"), head + "".join(f"{int(b)},{a!r}\n" for a, b in rows))
    sparse = read_arff(Path("a.arff"), head + "".join(f"{{0 {int(b)}, 1 {a!r}}}\n" for a, b in rows))
    for table in (dense, sparse):
        assert list(table.columns) == ["label", f"{name}x"]
        assert table.columns[f"{name}x"].tolist() == [a for a, _ in rows]
        assert table.columns["label"].tolist() == [b for _, b in rows]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="@adtribueln{}01,?'\" \n%", max_size=120))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        table = read_arff(Path("a.arff"), "@relation r\n@attribute a {0,1}\n" + text)
    except ValueError as error:
        assert str(error).startswith("a.arff")  # noqa: PT017
    else:
        assert "a" in table.columns
