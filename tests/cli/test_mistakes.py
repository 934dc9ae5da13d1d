"""A user's mistake ends in one line that says what to do, and exit status 2: by command, by file, by option."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli import world
from tests.cli.world import CONLLU, SMALLER, spen
from tests.tasks.denoising.test_denoising_images import write_bad


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("mistakes")
    world.build(place)
    with pytest.MonkeyPatch.context() as patch:
        world.shrink(patch, place)
        assert spen("train", "local", "--out", "roles", *SMALLER["spen train srl/spen"].split()).status == 0
        yield place


def expect(line: str, *arguments: str) -> None:
    answer = spen(*arguments)
    assert answer.status == 2, answer
    assert answer.out == ""
    assert len(answer.err.strip().splitlines()) == 1, answer.err
    assert answer.err.startswith("spen: ")
    assert line in answer.err


# ── names and options ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("bogus", "no such command 'bogus'; see `spen --help`"),
        ("train", "missing argument 'recipe'; see `spen train --help`"),
        ("train dp-3 --seed x", "invalid value for '--seed'"),
        ("train dp-3 --seconds 0", "invalid value for '--seconds'"),
        ("train dp-3 --colour red", "no such option: --colour"),
        ("train dp-4", "there is no recipe 'dp-4'; `spen list` shows them: bm3d, tv,"),
        ("train srl/dp-3", "there is no recipe 'dp-3' of srl; `spen list` shows them: local, spen"),
        ("train chess/dp-3", "there is no task 'chess'; there are denoising, srl, multilabel"),
        (
            "train spen-best",
            "'spen-best' is a recipe of denoising and of srl; write denoising/spen-best or srl/sp",
        ),
        ("train dp-3 --data moon", "there is no denoising data set 'moon'; there are rooms, simulated"),
        ("train local --data moon", "there is no data set 'moon' for role labelling; there are builtin, ewt, conll"),
        ("train bibtex-end-to-end --data moon", "no multilabel/moon.npz under"),
        ("train dp-3 --set steps", "--set takes KEY=VALUE, not 'steps'"),
        ("train dp-3 --set stops=3", "recipe dp-3 has no option 'stops'; it has average, average_pooling, batch_size"),
        ("train dp-3 --set steps=few", "steps is a whole number, not 'few'"),
        ("train local --set stops=3", "recipe local has no option 'stops'; it has templates, encoder"),
        ("train bibtex-end-to-end --set stops=3", "recipe bibtex-end-to-end has no option 'stops'; it has hidden, ra"),
        ("train bibtex-end-to-end --set hidden=many", "hidden is whole numbers with x between them, not 'many'"),
        ("train bibtex-end-to-end --set context=maybe", "context is true or false, not 'maybe'"),
        ("train bibtex-end-to-end --set domain=ball", "domain is one of box, simplex, not 'ball'"),
        ("train dp-3 --device cuda", "there is no cuda here that torch can use; leave the option away"),
        ("evaluate nowhere", "'nowhere' is neither a run folder nor a model of the package (depth, dp-3"),
        ("evaluate .", ". holds no model that can be opened: it has neither run.json nor config.json"),
        ("evaluate dp-3 --split all", "invalid value for '--split': 'all' is not one of 'train', 'dev', 'test'"),
        ("evaluate dp-3 --every 0", "invalid value for '--every'"),
        ("evaluate dp-3 --device cuda", "there is no cuda here that torch can use; leave the option away"),
        ("evaluate roles --every 2", "--every is an option of denoising and reasoning, not of srl"),
        ("predict dp-9 noisy.png -o y.png", "'dp-9' is neither a run folder nor a model of the package (depth, dp-3"),
        ("predict dp-3 nothing.png -o y.png", "nothing.png does not exist"),
        (
            "predict dp-3 noisy.png -o noisy.png",
            "noisy.png would be overwritten by the answer for noisy.png; give another",
        ),
        ("predict dp-3 noisy.png -o y.png --format json", "--format is an option of srl, not of denoising"),
        ("predict dp-3 noisy.png -o y.png --peak 0", "peak is 0.0 but must be positive"),
        (
            "predict roles frames -o y",
            "frames holds no file *.conllu; `spen predict` reads parsed sentences in CoNLL-U",
        ),
        ("predict roles sentences.conllu -o y --peak 3", "--peak is an option of denoising, not of srl"),
        ("predict roles sentences.conllu -o y --holes zero", "--holes is an option of denoising, not of srl"),
        ("predict roles sentences.conllu -o y --format xml", "invalid value for '--format': 'xml' is not one of"),
        ("reproduce table9", "there is no table 'table9'; there are table1, table2"),
        ("reproduce table1 --rows dp-4", "there is no denoising recipe 'dp-4'; there are bm3d"),
        ("reproduce table1 --data moon", "there is no denoising data set 'moon'; there are rooms"),
        ("reproduce table1 --genre weblog", "--genre is an option of srl, not of denoising"),
        ("reproduce table2 --rows crf", "no recipe is called 'crf'; choose from local, spen"),
        ("reproduce table2 --data moon", "there is no data set 'moon' for role labelling; there are"),
        (
            "reproduce table2 --data ewt --genre moon --rows local",
            "no sentence is of genre 'moon'; there are email",
        ),
        ("compare bibtex --ways magic", "there is no way magic to learn an energy; choose from feedforward"),
        ("compare bibtex --seconds 1 --updates 1", "give a budget in seconds or in updates, not in both"),
        ("compare moon", "no multilabel/moon.npz under"),
        ("data fetch mnist", "there is no data set 'mnist' to fetch; there are 7scenes, ewt"),
        ("data fetch 7scenes --scene kitchen", "scene is 'kitchen' but 7-Scenes has chess, fire"),
        ("data fetch 7scenes --scene fire", "fire.zip could not be read"),
        ("data fetch ewt --scene fire", "ewt has no option --scene"),
        ("data make mnist", "there is no data set 'mnist' to make; there are 7scenes, ewt, conll2005"),
        ("data make ewt --source .", ". does not hold the two archives of EWT; `spen data fetch ewt` downloads them"),
        ("data make ewt --ptb .", "ewt has no option --ptb"),
        ("data make ewt --device cuda", "ewt has no option --device"),
        ("data make 7scenes --source frames", "frames: holds no seq-NN/frame-NNNNNN.depth.png"),
        ("data make conll2005 --source .", "conll2005 has no words of its own: give the Penn Treebank with --ptb DIR"),
        ("data make conll2005 --ptb .", "give the folder of the shared task's release with --source DIR"),
        ("data make conll2005 --ptb . --source . --out x", "the words of conll2005 are put into its --source folder"),
        ("data make conll2005 --ptb . --source frames", "no props folder below it; give the folder the shared task's"),
        ("score gold.props.gz nothing.props", "the file cannot be read"),
    ],
    ids=lambda text: text if " " not in text or len(text) < 60 else text[:60],
)
@pytest.mark.usefixtures("folder")
def test_names_and_options(command: str, line: str) -> None:
    expect(line, *command.split())


def test_a_run_of_something_else(folder: Path) -> None:
    for name, text, line in (
        (
            "foreign",
            '{"model_type": "spen", "builder": "chess", "settings": {}}',
            "there is no task 'chess'; there are denoising, srl, multilabel",
        ),
        ("nobody", '{"model_type": "spen", "builder": null, "settings": {}}', "nobody/config.json names no task"),
        ("broken", "{", "broken/config.json cannot be read"),
        ("old", "[]", "old/config.json is of another library"),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(text)
        expect(line, "evaluate", name)
        expect(line, "predict", name, "noisy.png", "-o", "y.png")
    (folder / "plain").mkdir()
    (folder / "plain" / "run.json").write_text("{}")
    expect("plain holds no model that can be opened: its model was not built by a task of spen", "evaluate", "plain")


def test_a_run_that_does_not_say_what_it_is(folder: Path) -> None:
    (folder / "torn").mkdir()
    (folder / "torn" / "config.json").write_text('{"model_type": "spen", "builder": "denoising", "settings": {}}')
    line = "torn does not say all of what its model is: 'recipe' is missing or unreadable"
    expect(line, "predict", "torn", "noisy.png", "-o", "y.png")


def test_a_place_that_cannot_be_written_to(folder: Path) -> None:
    told = "noisy.png is a file, and a folder is needed: give another name"
    expect(told, "train", "dp-3", "--out", "noisy.png")
    expect(told, "predict", "dp-3", "noisy.png", "-o", "noisy.png/y.png")
    expect(told, "predict", "dp-3", "noisy.png", "-o", "noisy.png/x/y.png")
    expect("/dev/null is a file, and a folder is needed", "predict", "dp-3", "noisy.png", "-o", "/dev/null")


def test_a_folder_of_another_run_is_not_overwritten() -> None:
    options = SMALLER["spen train srl/spen"].split()
    line = "roles holds another run (seed: 0 there, 1 now); give another folder, or delete it to start anew"
    expect(line, "train", "local", "--out", "roles", "--seed", "1", *options)


def test_a_run_without_weights(folder: Path) -> None:
    (folder / "begun").mkdir()
    (folder / "begun" / "run.json").write_text((folder / "roles" / "run.json").read_text())
    (folder / "begun" / "config.json").write_text((folder / "roles" / "config.json").read_text())
    expect("begun has no trained weights yet: train it to the end, or resume it", "evaluate", "begun")


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("truncated", "is damaged or cut short"),
        ("text", "is not an image of a known format"),
        ("empty", "is not an image of a known format"),
        ("16-bit colour", "has 16 bits a colour, of which 8 would be lost; save it as .npy or in 8 bits"),
        ("zero", "every pixel is zero, so the frame holds no reading"),
        ("bomb", "claims 9000×9000 pixels, more than the 67108864 allowed; crop or shrink it"),
        ("npy cut", "is not a numpy array, or is cut short"),
    ],
)
def test_bad_images(folder: Path, tmp_path: Path, kind: str, line: str) -> None:
    path = write_bad(tmp_path / "frame.png", kind)
    expect(f"{path}: {line}", "predict", "dp-3", str(path), "-o", str(tmp_path / "out.png"))
    assert not (tmp_path / "out.png").exists()


def _no_pair(train: Path) -> None:
    (train / "000001.clean.png").unlink()


def _eight_bits(train: Path) -> None:
    Image.fromarray(np.full((40, 48), 9, np.uint8)).save(train / "000001.raw.png")


def _other_size(train: Path) -> None:
    for part in ("raw", "clean"):
        Image.fromarray(np.full((30, 48), 900, np.uint16)).save(train / f"000001.{part}.png")


def _all_zero(train: Path) -> None:
    Image.fromarray(np.zeros((40, 48), np.uint16)).save(train / "000001.clean.png")


def _cut(train: Path) -> None:
    path = train / "000001.raw.png"
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_no_pair, "000001.raw.png: its pair 000001.clean.png is missing"),
        (_eight_bits, "000001.raw.png: has 8 bits a pixel, but depth frames have 16"),
        (_other_size, "000001.raw.png: is 48×30, but the frames before it are 48×40"),
        (_all_zero, "000001.clean.png: every pixel is zero, so the frame holds no reading"),
        (_cut, "000001.raw.png: is damaged or cut short"),
    ],
)
def test_bad_frame_pairs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], line: str
) -> None:
    world.depth_pairs(tmp_path / "denoising" / "redkitchen")
    spoil(tmp_path / "denoising" / "redkitchen" / "test")
    monkeypatch.setenv("SPEN_DATA", str(tmp_path))
    expect(line, "evaluate", "dp-3", "--data", "redkitchen")


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _line(number: int, old: str, new: str) -> bytes:
    lines = CONLLU.splitlines(keepends=True)
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new)
    return "".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (_line(2, "\t_\t_", ""), "bad.conllu:3: "),
        (_line(0, "\t2\tnsubj", "\t4\tnsubj").replace(b"\t2\tobj", b"\t1\tobj"), "bad.conllu:1: "),
        (_line(0, "\t2\tnsubj", "\t0\troot"), "the tree has 2 roots"),
        (_line(0, "\t2\tnsubj", "\t9\tnsubj"), "bad.conllu:1: "),
        (_line(0, "1\tAnn", "7\tAnn"), "bad.conllu:1: "),
        (b"\xff" + CONLLU.encode(), "bad.conllu:1: byte 0xff is not UTF-8"),
        (b"", "bad.conllu holds no sentence; CoNLL-U has a line for each word"),
    ],
    ids=["a missing column", "a cycle", "two roots", "no such head", "wrong number", "bad encoding", "empty"],
)
def test_bad_sentences(folder: Path, content: bytes, line: str) -> None:
    (folder / "bad.conllu").write_bytes(content)
    expect(line, "predict", "roles", "bad.conllu", "-o", "roles.out")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("- (A0*\n- *\n\n", "bad.props"),
        ("- A0*)\n- *\n\n", "bad.props"),
        ("sing (V*)\n-\n\n", "bad.props:2: "),
        ("-\n\n", "6 gold sentences but 1 predicted; they must be the same ones"),
        ("a b c d\n\n", "bad.props"),
    ],
    ids=["open bracket", "close bracket", "a missing column", "differing lengths", "too many predicates"],
)
def test_bad_propositions(folder: Path, content: str, line: str) -> None:
    (folder / "bad.props").write_text(content)
    expect(line, "score", "gold.props.gz", "bad.props")


def test_damaged_and_misread_corpora(folder: Path, tmp_path: Path) -> None:
    gold = (folder / "gold.props.gz").read_bytes()
    (tmp_path / "cut.props.gz").write_bytes(gold[: len(gold) // 2])
    expect("the gzipped file is damaged or cut short; fetch it again", "score", str(tmp_path / "cut.props.gz"), "x")
    (tmp_path / "bad.props").write_bytes(b"- \xff\n\n")
    expect("bad.props:1: byte 0xff is not UTF-8", "score", "gold.props.gz", str(tmp_path / "bad.props"))
    good = gzip.decompress((folder / "data/srl/ewt/ewt-srl.test.tsv.gz").read_bytes()).decode()
    rows = good.splitlines(keepends=True)
    rows[2] = rows[2].partition("\t")[2]
    (tmp_path / "ewt").mkdir()
    for split in ("train", "dev", "test"):
        text = "".join(rows) if split == "test" else good
        (tmp_path / "ewt" / f"ewt-srl.{split}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    expect("ewt-srl.test.tsv.gz:3: ", "evaluate", "roles", "--data", str(tmp_path))


# ── label sets ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _npz(**changes: np.ndarray | None) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        parts: dict[str, np.ndarray | None] = {f"x_{s}": np.ones((12, 3), np.float32) for s in ("train", "test")}
        parts |= {f"y_{s}": np.eye(12, 2, dtype=np.float32) for s in ("train", "test")}
        parts |= changes
        np.savez(place / "bad.npz", **{k: v for k, v in parts.items() if v is not None})  # type: ignore[arg-type]
        return "bad.npz"

    return write


def _text(name: str, train: str, test: str | None) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        stem, _, suffix = name.partition(".")
        (place / f"{stem}-train.{suffix}").write_text(train)
        if test is not None:
            (place / f"{stem}-test.{suffix}").write_text(test)
        return f"{stem}-train.{suffix}"

    return write


NO_LABELS = "@relation x\n@attribute a numeric\n@data\n1\n"
LIBSVM = "0,1 1:1 2:0.5\n1 2:1\n" * 8


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (_npz(y_train=None, x_test=None), "bad.npz has no y_train, x_test; a multi-label npz holds x_train y_train"),
        (_npz(x_train=np.full((12, 3), np.inf, np.float32)), "column 'x0' holds an infinite number, 'inf' in row 1"),
        (
            _npz(y_test=np.array([[None]] * 12)),
            "bad.npz holds an array that cannot be read: save x and y as numbers, and names as text; dtype=object, ",
        ),
        (_npz(x_train=np.full((12, 3), "a")), "bad.npz: inputs of type <U1 and labels of type float32 must be numbers"),
        (_npz(x_train=np.full((12, 3), np.nan, np.float32)), "'x0' has no value in any training row: remove it"),
        (
            _npz(y_train=np.full((12, 2), 3, np.float32)),
            "the target '0' has the values 3; a target is 0 or 1 in every row",
        ),
        (_npz(y_train=np.eye(11, 2, dtype=np.float32)), "tables of equal length"),
        (lambda place: _spoil(place, b"not a zip"), "bad.npz is not an npz file, or is cut short"),
        (lambda place: _array(place), "bad.npz holds one array; a multi-label npz holds several: save it with numpy"),
        (_text("mine.svm", LIBSVM, LIBSVM.replace("0,1", "9")), "has the label 9, which the training part does not"),
        (
            _text("mine.svm", "what is this\n", LIBSVM),
            "mine-train.svm is not LIBSVM (label,label index:value …): ",
        ),
        (_text("lone.svm", LIBSVM, None), "lone-train.svm: call it lone-test.svm, or give the table another name"),
        (
            _text("mine.arff", "@relation x\n@attribute a numeric\n@data\n1\n", "x"),
            "mine-test.arff is no ARFF file: it has no @data",
        ),
        (
            _text("one.arff", NO_LABELS, NO_LABELS),
            "does not say which columns are labels: give --targets, some of a, …",
        ),
        (_text("mine.arff", "hello", "hello"), "mine-train.arff"),
    ],
    ids=[
        "missing",
        "infinite",
        "objects",
        "texts",
        "nan",
        "no 0/1",
        "lengths",
        "no zip",
        "no npz",
        "unseen label",
        "no svm",
        "no test",
        "no test data",
        "no labels",
        "no arff",
    ],
)
def test_bad_label_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    expect(line, "compare", write(tmp_path), "--ways", "feedforward", "--updates", "1")


def _spoil(place: Path, content: bytes) -> str:
    (place / "bad.npz").write_bytes(content)
    return "bad.npz"


def _array(place: Path) -> str:
    with open(place / "bad.npz", "wb") as file:
        np.save(file, np.ones(3))
    return "bad.npz"


def test_other_data_than_the_run_was_trained_on(folder: Path) -> None:
    options = SMALLER["spen train bibtex-"].split()
    assert spen("train", "bibtex-end-to-end", "--out", "sets", *options).status == 0
    line = "other.npz lacks the columns 'x4', 'x5', 'x6' and 5 more, which the model was trained on"
    parts = {f"x_{s}": np.ones((12, 4), np.float32) for s in ("train", "test")}
    parts |= {f"y_{s}": np.eye(12, 3, dtype=np.float32) for s in ("train", "test")}
    np.savez(folder / "other.npz", **parts)
    expect(line, "evaluate", "sets", "--data", "other.npz")
