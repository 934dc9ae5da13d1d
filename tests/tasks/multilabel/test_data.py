"""Readers of npz, ARFF and LIBSVM files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spen.tasks.multilabel.arff import read_arff
from spen.tasks.multilabel.data import hold_out, load, read_libsvm, read_npz
from spen.tasks.multilabel.label_sets import LabelSets
from tests.tasks.multilabel.small import small_splits

X = [[0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
Y = [[1.0, 0.0], [1.0, 1.0]]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


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
SPARSE = DENSE.split("@data")[0].replace(": -C 2", "") + "@data\n{0 1,2 0.5,3 1.0}\n{0 1, 1 1, 4 2}\n"
XML = """<?xml version="1.0"?><labels xmlns="http://mulan.sourceforge.net/labels">
<label name="fine art"></label><label name="sport"></label></labels>"""


def test_arff_dense_and_sparse(tmp_path: Path) -> None:
    dense = read_arff(write(tmp_path, "a.arff", DENSE))
    assert dense.x.tolist() == X
    assert dense.y.tolist() == Y
    assert dense.labels == ("sport", "fine art")
    path = write(tmp_path, "b.arff", SPARSE)
    assert torch.equal(read_arff(path, 2).x, dense.x)
    assert read_arff(path, ["fine art"]).x.shape == (2, 4)
    with pytest.raises(ValueError, match="does not say which attributes are labels"):
        read_arff(path)
    write(tmp_path, "b.xml", XML)
    mulan = read_arff(path)
    assert mulan.labels == ("fine art", "sport")
    assert mulan.y.tolist() == [[0, 1], [1, 1]]
    assert torch.equal(read_arff(path, tmp_path / "b.xml").y, mulan.y)


def test_arff_labels_at_the_end_and_nominal_inputs(tmp_path: Path) -> None:
    text = "@relation t\n@attribute colour {red,'dark blue',green}\n@attribute l {0,1}\n@data\n'dark blue',1\ngreen,0\n"
    found = read_arff(write(tmp_path, "c.arff", text), -1)
    assert found.x.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert found.y.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("@data", "@dat"), "it has no @data"),
        (("1,0,0.5,1.0,0", "1,0,0.5,1.0"), "a row has 4 values for 5 attributes"),
        (("1,0,0.5,1.0,0", "1,0,?,1.0,0"), "a value of 'length' is missing"),
        (("1,0,0.5,1.0,0", "1,7,0.5,1.0,0"), "'7' is no value of 'fine art'"),
        (("1,0,0.5,1.0,0", "1,0,long,1.0,0"), "d.arff: 'long' is no value of 'length'"),
        (("length numeric", "length string"), "is of type string"),
        (("length numeric", "length"), "d.arff: '@attribute length' has no name and type of an attribute"),
        (("sport {0,1}", "sport {0,1"), "d.arff: '@attribute sport {0,1' has no name and type of an attribute"),
    ],
)
def test_broken_arff_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = write(tmp_path, "d.arff", DENSE.replace(*change))
    with pytest.raises(ValueError, match=message):
        read_arff(path)
    with pytest.raises(ValueError, match=r"has no attributes \['unknown'\]"):
        read_arff(write(tmp_path, "e.arff", DENSE), ["unknown"])


@pytest.mark.parametrize("kind", ["{0,1}", "{1,0}", "numeric", "{1, 0}"])
def test_labels_of_an_arff_are_0_and_1_in_either_order(tmp_path: Path, kind: str) -> None:
    header = f"@relation 't: -C 1'\n@attribute l{' ' * (kind == 'numeric')}{kind}\n@attribute a numeric\n@data\n"
    assert read_arff(write(tmp_path, "a.arff", header + "1,3\n0,4\n")).y.tolist() == [[1], [0]]
    sparse = read_arff(write(tmp_path, "b.arff", header + "{1 3}\n{0 1}\n{0 0,1 4}\n"))
    left_out = 1 if kind.startswith("{1") else 0  # a sparse row leaves out the first nominal value
    assert sparse.y.tolist() == [[left_out], [1], [0]]
    assert sparse.x.tolist() == [[3], [0], [4]]


@pytest.mark.parametrize(
    ("kind", "row", "values"),
    [
        ("{yes,no}", "yes", "yes, no"),
        ("{a,b,c}", "b", "a, b, c"),
        ("numeric", "2.5", "1, 2.5"),
        ("{0,1,2}", "1", "0, 1, 2"),
    ],
)
def test_other_labels_of_an_arff_are_named(tmp_path: Path, kind: str, row: str, values: str) -> None:
    first = "1" if kind == "numeric" else row
    text = f"@relation 't: -C 1'\n@attribute 'fine art' {kind}\n@attribute a numeric\n@data\n{first},3\n{row},3\n"
    with pytest.raises(ValueError, match=rf"a\.arff: the label 'fine art' has the values {values}, not 0 and 1"):
        read_arff(write(tmp_path, "a.arff", text))


def test_a_sparse_row_leaves_out_the_first_value_of_an_input(tmp_path: Path) -> None:
    header = "@relation 't: -C 1'\n@attribute l {0,1}\n@attribute a {1,0}\n@attribute b {x,y,z}\n@data\n"
    found = read_arff(write(tmp_path, "a.arff", header + "{0 1}\n{1 0,2 z}\n"))
    assert found.x.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1]]
    assert found.y.tolist() == [[1], [0]]


@pytest.mark.parametrize("cell", ["-1 9", "5 1", "x 1", "3"])
def test_a_sparse_cell_of_no_attribute_is_refused(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path, "a.arff", SPARSE.replace("{0 1, 1 1, 4 2}", "{" + cell + "}"))
    with pytest.raises(ValueError, match=rf"a\.arff: '{cell}' in a sparse row is not an index from 0 to 4 and a value"):
        read_arff(path, 2)


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
    ("change", "what", "difference"),
    [
        (("f numeric\n@attribute g {0,1}", "g {0,1}\n@attribute f numeric"), "attributes", "'g' in the place of 'f'"),
        (("@attribute f", "@attribute h"), "attributes", "'h' in the place of 'f'"),
        (("@attribute f", "@attribute e numeric\n@attribute f"), "attributes", "'e' in the place of 'f'"),
        (
            ("@attribute colour {red,green,blue}\n", ""),
            "attributes",
            "nothing in the place of 'colour' {red,green,blue}",
        ),
        (("{red,", "{pink,"), "attributes", "'colour' {pink,green,blue} in the place of 'colour' {red,green,blue}"),
        (("-C 1", "-C 2"), "labels", "'f' in the place of nothing"),
        (("-C 1", "-C -1"), "labels", "'colour' in the place of 'l'"),
    ],
)
def test_an_arff_test_part_with_other_columns_is_refused(
    tmp_path: Path, change: tuple[str, str], what: str, difference: str
) -> None:
    write(tmp_path, "toy-test.arff", COLOURS.replace(*change))
    with pytest.raises(ValueError, match=rf"toy-test\.arff has other {what} than the training part: {difference}$"):
        load(write(tmp_path, "toy-train.arff", COLOURS), dev=0.5)


def test_an_arff_test_part_may_write_0_and_1_its_own_way(tmp_path: Path) -> None:
    train = write(tmp_path, "toy-train.arff", COLOURS)
    write(tmp_path, "toy-test.arff", COLOURS.replace("l {0,1}", "l {1,0}").replace("g {0,1}", "g numeric"))
    test = load(train, dev=0.5).test
    assert test.x.tolist() == [[1, 0, 1, 0, 0], [2, 1, 0, 0, 1]]
    assert test.y.tolist() == [[1], [0]]


def test_libsvm(tmp_path: Path) -> None:
    path = write(tmp_path, "a.svm", "1 1:0.5 2:1\n1,4 3:2\n")
    found = read_libsvm(path)
    assert found.x.tolist() == X
    assert found.y.tolist() == Y
    assert found.labels == ("1", "4")
    wide = read_libsvm(write(tmp_path, "b.svm", "4 1:1\n"), inputs=3, labels=found.labels)
    assert wide.x.tolist() == [[1, 0, 0]]
    assert wide.y.tolist() == [[0, 1]]
    zero = read_libsvm(write(tmp_path, "c.svm", "1 0:0.5 1:1\n"))
    assert zero.x.tolist() == [[0.5, 1.0]]
    with pytest.raises(ValueError, match="the label 9, which the training part does not"):
        read_libsvm(write(tmp_path, "d.svm", "9 1:1\n"), inputs=3, labels=found.labels)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ("1 0:1 2:3\n1 1:2\n", "1 1:5 2:7\n", [[0, 5, 7]]),
        ("1 1:1 2:3\n1 1:2\n", "1 0:5 2:7\n", [[5, 0, 7]]),
        ("1 1:1 3:3\n1 1:2\n", "1 1:5 3:7\n", [[5, 0, 7]]),
        ("1 1:1 3:3 # from 0: no\n1 1:2\n", "1 1:5 3:7\n", [[5, 0, 7]]),
    ],
)
def test_libsvm_parts_count_from_the_same_number(
    tmp_path: Path, train: str, test: str, expected: list[list[float]]
) -> None:
    write(tmp_path, "toy_test.svm", test)
    assert load(write(tmp_path, "toy_train.svm", train), dev=0.5).test.x.tolist() == expected


def test_npz_and_paths(tmp_path: Path) -> None:
    small = small_splits()
    parts = {"x_train": small.train.x, "y_train": small.train.y, "x_test": small.test.x, "y_test": small.test.y}
    np.savez(tmp_path / "a.npz", **{k: v.numpy().astype(np.uint8) for k, v in parts.items()})
    train, test = read_npz(tmp_path / "a.npz")
    assert torch.equal(train.x, small.train.x)
    assert test.labels == ("0", "1", "2", "3", "4")
    splits = load(tmp_path / "a.npz", dev=0.2)
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (112, 28, 50)
    np.savez(tmp_path / "b.npz", x_train=np.zeros(3))
    with pytest.raises(ValueError, match="has no y_train, x_test, y_test"):
        read_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", **{**parts, "x_test": small.test.x[:, :9]})
    with pytest.raises(ValueError, match=r"c\.npz: x_test has 9 columns, but x_train has 12"):
        read_npz(tmp_path / "c.npz")


def test_train_and_test_files_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, "toy-train.arff", DENSE)
    with pytest.raises(FileNotFoundError, match="no test part beside"):
        load(tmp_path / "toy-train.arff", dev=0.5)
    write(tmp_path, "toy-test.arff", DENSE)
    assert len(load(tmp_path / "toy-train.arff", dev=0.5).test) == 2
    write(tmp_path, "toy_train.svm", "1 1:0.5 2:1\n1,4 3:2\n")
    write(tmp_path, "toy_test.svm", "4 1:0.5\n")
    assert load(tmp_path / "toy_train.svm", dev=0.5).test.y.tolist() == [[0, 1]]


def test_holding_out_is_a_partition_and_repeats() -> None:
    data = small_splits().train
    data = LabelSets(torch.arange(140.0)[:, None], data.y, data.labels)
    kept, held = hold_out(data, 0.1, 3)
    assert len(held) == 14
    assert sorted([*kept.x.flatten().tolist(), *held.x.flatten().tolist()]) == list(range(140))
    assert torch.equal(hold_out(data, 0.1, 3)[1].x, held.x)
    assert not torch.equal(hold_out(data, 0.1, 4)[1].x, held.x)
    with pytest.raises(ValueError, match="a fraction between 0 and 1"):
        hold_out(data, 1.0, 0)
    with pytest.raises(ValueError, match="too few to hold some out"):
        hold_out(data.rows(torch.tensor([0])), 0.5, 0)


def test_label_sets_refuse_what_is_no_label_set() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 1)
    with pytest.raises(ValueError, match="tables of equal length"):
        LabelSets(x, y[:1], ("a",))
    with pytest.raises(ValueError, match="2 names for 1 labels"):
        LabelSets(x, y, ("a", "b"))
    with pytest.raises(ValueError, match="NaN or infinity"):
        LabelSets(x / 0, y, ("a",))
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        LabelSets(x, y + 0.5, ("a",))


@pytest.mark.parametrize(
    ("name", "sizes"), [("bibtex", (4392, 488, 2515, 1836, 159)), ("delicious", (11628, 1292, 3185, 500, 983))]
)
def test_the_standard_splits(name: str, sizes: tuple[int, ...]) -> None:
    try:
        splits = load(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    train, dev, test = splits.train, splits.dev, splits.test
    assert (len(train), len(dev), len(test), train.x.shape[1], train.y.shape[1]) == sizes
    assert len(set(train.labels)) == train.y.shape[1]
