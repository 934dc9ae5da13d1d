"""Tables from CSV, parquet, npz and LIBSVM files, and how they are split."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spen.tasks.multilabel.data import hold_out, load, read_csv, read_parts, read_table
from spen.tasks.multilabel.tables import LabelSets, Schema
from tests.tasks.multilabel.small import read, small_splits, write

X = [[0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
Y = [[1.0, 0.0], [1.0, 1.0]]
SONGS = "tempo,key,happy,calm\n120,C,1,0\n90,D,0,true\n,C,1,FALSE\n100,,0,1\n"


def test_a_csv_has_numbers_words_and_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(write(tmp_path, "songs.csv", SONGS), "happy", "calm")
    assert found.labels == ("happy", "calm")
    assert found.y.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    mean = np.float32(310 / 3).item()
    assert found.x.tolist() == [[120, 1, 0], [90, 0, 1], [mean, 1, 0], [100, 0, 0]]
    assert capsys.readouterr().err.endswith(
        "songs.csv: 2 missing values in the columns 'tempo', 'key'; a number becomes the mean of the training rows, "
        "a word none of the column's words\n"
    )
    for separator in ";\t":
        path = write(tmp_path, "other.csv", "\ufeff" + SONGS.replace(",", separator))
        assert torch.equal(read(path, "happy", "calm").x, found.x)


def test_new_rows_are_read_as_the_training_rows_were(tmp_path: Path) -> None:
    table = read_parts(write(tmp_path, "songs.csv", SONGS), ["happy", "calm"])[0]
    schema = Schema(**Schema.of(table).describe())
    new = read_table(write(tmp_path, "new.csv", "key,tempo\nD,7\n?,NA\n"))
    assert schema.x(new).tolist() == [[7, 0, 1], [np.float32(310 / 3).item(), 0, 0]]
    digits = Schema({"key": ("1", "C")}, ("a",))  # a column of words keeps its words, where all of them are numbers
    assert digits.x(read_table(write(tmp_path, "new.csv", "key,a\n1,0\n"))).tolist() == [[1, 0]]
    for text, sentence in (
        ("key\nC\n", "new.csv lacks the column 'tempo', which the model was trained on"),
        ("key,tempo,a,b,c,d\nC,1,1,1,1,1\n", "has the columns 'a', 'b', 'c' and 1 more, which the model does not know"),
        (
            "key,tempo\nE,1\n",
            r"'E' in the column 'key' is none of the words it was trained on \(C, D\); correct it, or le",
        ),
        ("key,tempo\nC,fast\n", r"new.csv: 'fast' in line 2 is no number, as the column 'tempo' needs$"),
        ('key,tempo\nC,1\n\nC,"1,5"\n', "'1,5' in line 4 is no number, as the column 'tempo' needs; write decimals w"),
    ):
        with pytest.raises(ValueError, match=sentence):
            schema.x(read_table(write(tmp_path, "new.csv", text)))
    with pytest.raises(ValueError, match=r"new\.csv: the column 'tempo' holds an infinite number, 'inf' in line 2"):
        schema.x(read_table(write(tmp_path, "new.csv", "key,tempo\nC,inf\n")))
    with pytest.raises(ValueError, match="lacks the target 'happy'"):
        schema.y(new)


@pytest.mark.parametrize(
    ("text", "targets", "sentence"),
    [
        ("", "a", r"bad\.csv is empty"),
        (" \n\n", "a", r"bad\.csv is empty"),
        ("a,b\n", "a", r"bad\.csv has no rows"),
        ("a,b\n1,2,3\n", "a", r"bad\.csv: line 2 has 3 values for 2 columns"),
        ("a,a\n1,2\n", "a", r"bad\.csv has the column 'a' twice: give each column a name of its own"),
        ("a,b\n1,2\n", "c", r"bad\.csv has no column 'c', which --targets names; its last ones are a, b"),
        ("a,b\n1,2\n", "a,a", "--targets has 'a' twice: name each target once"),
        ("a,b\n1,2\n", "a,b", r"every column of .*bad\.csv is a target: there is nothing to predict from"),
        ("a,b\nred,2\nblue,2\n", "a", "the target 'a' has the values blue, red; a target is 0 or 1 in every row"),
        ("a,b\n0.5,2\n1,2\n", "a", "the target 'a' has the values 0.5, 1; a target is 0 or 1 in every row"),
        ("a,b\n,2\n1,2\n", "a", "a value of the target 'a' is missing; fill it in, or remove the row"),
        (
            "a,b\n1,2\n0,-inf\n",
            "a",
            r"bad\.csv: the column 'b' holds an infinite number, '-inf' in line 3: correct it, or",
        ),
        ("a,b\n1,1e39\n", "a", "holds an infinite number, '1e39' in line 2"),
        ("a,b\n" + "".join(f"1,w{i}\n" for i in range(101)), "a", "'b' has 101 different words, more than 100: remove"),
    ],
)
def test_a_bad_csv_is_named(tmp_path: Path, text: str, targets: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(write(tmp_path, "bad.csv", text), *targets.split(","))


AGES = [str(age) for age in range(18, 81)]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (
            [*AGES[:5], "unknown", *AGES[5:]],
            r"bad\.csv: the column 'age' holds numbers and words, 'unknown' in line 7: leave such cells empty, or, if "
            "its numbers are names, put a letter before each",
        ),
        (["?", "1", "old", "2"], "'old' in line 4: leave such cells empty"),
        (
            ["1", "0,5", "-1,25"],
            r"bad\.csv: the column 'age' holds numbers with a comma, '0,5' in line 3: write decimals with a point",
        ),
        (["0,5", "?", "1,5", "unknown"], "numbers with a comma, '0,5' in line 2: write decimals with a point"),
    ],
)
@pytest.mark.parametrize("name", ["bad.csv", "bad-train.csv"])
def test_a_column_of_numbers_does_not_become_words(tmp_path: Path, cells: list[str], sentence: str, name: str) -> None:
    text = "age;happy\n" + "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells))
    write(tmp_path, "bad-test.csv", "age;happy\n1;1\n")
    with pytest.raises(ValueError, match=sentence.replace(r"bad\.csv", name)):
        load(write(tmp_path, name, text), ["happy"], dev=0.5)


def test_a_column_of_words_may_hold_some_numbers(tmp_path: Path) -> None:
    schema = Schema.of(read_parts(write(tmp_path, "a.csv", "size;b\n1;0\nS;1\nM;1\n2;0\n"), ["b"])[0])
    assert schema.inputs == {"size": ("1", "2", "M", "S")}


def test_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("a,b\nü,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.csv is not UTF-8 text: save it as UTF-8"):
        read(tmp_path / "latin.csv", "b")
    with pytest.raises(ValueError, match=r"a\.xlsx should end in one of \.csv, \.tsv, \.arff"):
        read(tmp_path / "a.xlsx", "b")
    with pytest.raises(ValueError, match=r"a\.csv does not say which columns are labels: give --targets, some of a, b"):
        read(write(tmp_path, "a.csv", "a,b\n1,2\n"))


def test_parquet(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", "nothing")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(ValueError, match=r"a\.parquet needs pyarrow: pip install pyarrow, or save the tabl"):
            read(path, "b")
        return
    with pytest.raises(ValueError, match=r"a\.parquet is not a parquet file: "):
        read(path, "b")
    columns = {"a": [1.5, None, 2.5], "key": ["C", "D", None], "b": [True, False, True], "c": [0, 1, 1]}
    parquet.write_table(pyarrow.table(columns), path)
    found = read(path, "b", "c")
    assert found.x.tolist() == [[1.5, 1, 0], [2, 0, 1], [2.5, 0, 0]]
    assert found.y.tolist() == [[1, 0], [0, 1], [1, 1]]


def test_libsvm(tmp_path: Path) -> None:
    path = write(tmp_path, "a.svm", "1 1:0.5 2:1\n1,4 3:2\n")
    found = read(path)
    assert found.x.tolist() == X
    assert found.y.tolist() == Y
    assert found.labels == ("1", "4")
    schema = Schema.of(read_parts(path)[0])
    wide = schema.label_sets(read_table(write(tmp_path, "b.svm", "4 1:1\n")))
    assert wide.x.tolist() == [[1, 0, 0]]
    assert wide.y.tolist() == [[0, 1]]
    assert read(write(tmp_path, "c.svm", "1 0:0.5 1:1\n")).x.tolist() == [[0.5, 1.0]]
    with pytest.raises(ValueError, match="the label 9, which the training part does not"):
        schema.label_sets(read_table(write(tmp_path, "d.svm", "9 1:1\n")))
    with pytest.raises(ValueError, match="has the columns 'x0', 'x4', which the model does not know"):
        schema.x(read_table(write(tmp_path, "d.svm", "1 0:3 4:1\n")))


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ("1 0:1 2:3\n1 1:2\n", "1 1:5 2:7\n", [[0, 5, 7]]),
        ("1 1:1 3:3\n1 1:2\n", "1 1:5 3:7\n", [[5, 0, 7]]),
        ("1 1:1 3:3 # from 0: no\n1 1:2\n", "1 1:5 3:7\n", [[5, 0, 7]]),
    ],
)
def test_libsvm_columns_go_by_their_index(tmp_path: Path, train: str, test: str, expected: list[list[float]]) -> None:
    write(tmp_path, "toy_test.svm", test)
    assert load(write(tmp_path, "toy_train.svm", train), dev=0.5).test.x.tolist() == expected


def test_npz_and_paths(tmp_path: Path) -> None:
    small = small_splits()
    parts = {"x_train": small.train.x, "y_train": small.train.y, "x_test": small.test.x, "y_test": small.test.y}
    np.savez(tmp_path / "a.npz", **{k: v.numpy().astype(np.uint8) for k, v in parts.items()})
    train, test = read_parts(tmp_path / "a.npz")
    assert torch.equal(Schema.of(train).x(train), small.train.x)
    assert test.targets == ("0", "1", "2", "3", "4")
    splits = load(tmp_path / "a.npz", dev=0.2)
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (112, 28, 50)
    np.savez(tmp_path / "b.npz", x=small.test.x, y=small.test.y, label_names=list("abcde"))
    assert read(tmp_path / "b.npz").labels == tuple("abcde")
    with pytest.raises(ValueError, match=r"a\.npz holds two parts; the npz of one table holds x"):
        read_table(tmp_path / "a.npz")
    for name, arrays, sentence in (
        ("c", {"x_train": np.zeros(3)}, "has no y_train, x_test, y_test"),
        (
            "d",
            {**parts, "x_test": small.test.x[:, :9]},
            r"d\.npz lacks the columns 'x9', 'x10', 'x11', which the model",
        ),
        ("e", {"x": small.test.x, "y": small.test.y, "label_names": ["a"]}, "12 and 1 names for 12 inputs, 5 labels"),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(ValueError, match=sentence):
            load(tmp_path / f"{name}.npz")


def test_train_and_test_files_side_by_side_or_a_fifth(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2}\n" for i in range(20))
    path = write(tmp_path, "toy-train.csv", "a,b\n" + rows)
    with pytest.raises(
        FileNotFoundError, match="no test part beside .*: call it toy-test.csv, or give the table another"
    ):
        load(path, ["b"])
    write(tmp_path, "toy-test.csv", "b,a\n1,7\n")
    assert load(path, ["b"]).test.x.tolist() == [[7]]
    whole = load(write(tmp_path, "toy.csv", "a,b\n" + rows), ["b"])
    assert (len(whole.train), len(whole.dev), len(whole.test)) == (14, 2, 4)
    seen = torch.cat([whole.train.x, whole.dev.x, whole.test.x]).flatten()
    assert sorted(seen.tolist()) == list(range(20))
    assert whole.schema is not None
    trained_on = torch.cat([whole.train.x, whole.dev.x])
    assert whole.schema.inputs["a"] == pytest.approx(trained_on.mean().item()), "no word of the test rows"


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


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(CELLS, st.floats(allow_nan=False)), min_size=1, max_size=5), st.sampled_from(",;\t"))
def test_a_csv_that_python_writes_is_read(rows: list[tuple[str, float]], separator: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows([("word", "number"), *rows])
    table = read_csv(Path("a.csv"), file.getvalue())
    assert [str(v) for v in table.columns["word"]] == [word.strip().replace("\r\n", "\n") for word, _ in rows]
    assert [float(v) for v in table.columns["number"]] == [number for _, number in rows]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='ab01,;"?\n ', min_size=1, max_size=60).filter(str.strip))
def test_any_csv_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        table = read_csv(Path("a.csv"), text)
        Schema.of(table).x(table)
    except ValueError as error:
        assert str(error).startswith(("a.csv", "the inputs"))  # noqa: PT017
    else:
        assert len(table) > 0


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
